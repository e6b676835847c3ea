"""What gRPC tells to strangers once there are keys: that it lives and is ready, and nothing else."""

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from deploy.grpc_server import GrpcServer
from gateway.grpc_api import SERVICE
from gateway.inference_pb import inference_pb2 as pb
from gateway.inference_pb.inference_pb2_grpc import GRPCInferenceServiceStub
from tests.integration.rig import canned, serving
from tests.integration.stranger import own_address

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = {"name": "one", "sha256": sha256(b"sk-one").hexdigest()}
BEARING = (("authorization", "Bearer sk-one"),)
Metadata = tuple[tuple[str, str], ...]


@pytest_asyncio.fixture(loop_scope="session")
async def channel(tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    host = own_address()
    async with serving(tmp_path / "gateway.yaml", canned(), keys=[KEY]) as gateway:
        server = GrpcServer(gateway.gateway, host, 0)
        port = await server.start()
        async with grpc.aio.insecure_channel(f"{host}:{port}") as found:
            yield found
        await server.drained()


async def reflect(channel: grpc.aio.Channel, metadata: Metadata) -> list[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    call = stub.ServerReflectionInfo(asked, metadata=metadata)
    return [s.name async for answer in call for s in answer.list_services_response.service]


async def health(channel: grpc.aio.Channel, service: str, metadata: Metadata) -> Any:
    asked = health_pb2.HealthCheckRequest(service=service)
    return (await health_pb2_grpc.HealthStub(channel).Check(asked, metadata=metadata)).status


async def test_strangers_learn_that_it_is_ready(channel: grpc.aio.Channel) -> None:
    for service in ("", SERVICE):
        assert await health(channel, service, ()) == health_pb2.HealthCheckResponse.SERVING
    assert (await GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest())).live


async def test_strangers_learn_nothing_else(channel: grpc.aio.Channel) -> None:
    inference, checks = GRPCInferenceServiceStub(channel), health_pb2_grpc.HealthStub(channel)
    calls = [
        lambda: reflect(channel, ()),
        lambda: health(channel, "chat", ()),
        lambda: health(channel, "nobody", ()),
        lambda: checks.List(health_pb2.HealthListRequest()),
        lambda: checks.Watch(health_pb2.HealthCheckRequest(service="chat")).read(),
        lambda: inference.ModelReady(pb.ModelReadyRequest(name="chat")),
        lambda: inference.RepositoryIndex(pb.RepositoryIndexRequest()),
        lambda: inference.ModelMetadata(pb.ModelMetadataRequest(name="chat")),
        lambda: reflect(channel, (("authorization", "Bearer sk-two"),)),
    ]
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call()
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_whoever_bears_a_key_learns_all(channel: grpc.aio.Channel) -> None:
    assert SERVICE in await reflect(channel, BEARING)
    assert await health(channel, "chat", BEARING) == health_pb2.HealthCheckResponse.SERVING
