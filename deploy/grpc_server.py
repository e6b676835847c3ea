"""One gRPC server around one gateway: its services, its port, and the drain at the end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from gateway.app import Gateway
from gateway.grpc_api import SERVICE, Context, Decoding, InferenceService, let_look
from gateway.grpc_health import HEALTH, HealthService
from gateway.inference_pb import inference_pb2_grpc
from gateway.inference_pb.pool import POOL
from gateway.server_tls import ServerTls
from gateway.specs import ServerTlsSpec

_KEEP_ALIVE_MS = 60_000
"""Of silence, after which a client is asked whether it is still there."""
_ASKED_OFTEN_MS = 500
"""Clients may ask so often, also while nothing is sent or asked for. gRPC's own measure is five minutes: it would hang up
on whoever asks every ten seconds, as is usual, and waits for a first token."""
_READ_OF_LIMIT = 2
"""Of what a message may be, the multiple that is read all the same: gRPC ends the whole stream over a larger one, where
the others that run on it have done nothing wrong."""


class GrpcServer:
    """Serves from `start` until `drain` returns. The port may be shared with other processes of ours."""

    def __init__(self, gateway: Gateway, host: str, port: int, tls: ServerTlsSpec | None = None) -> None:
        self._tls = None if tls is None else ServerTls(tls)
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._inference = InferenceService(gateway)
        self._server = grpc.aio.server(
            interceptors=(Decoding(),), options=_options(gateway.spec.max_body_bytes)
        )
        inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self._inference, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(HealthService(gateway), self._server)
        _add_reflection(self._server, gateway)
        self._draining: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Begins to serve; the port. Raises RuntimeError when it can't be had."""
        if self._tls is None:
            port = self._server.add_insecure_port(self._address)
        else:
            port = self._server.add_secure_port(self._address, _credentials(self._tls))
        await self._server.start()
        return port

    def begin_drain(self, within_s: float) -> None:
        """Takes no new calls from now on; what is in flight may go on for so long. A second call may shorten that."""
        self._inference.begin_drain()
        self._draining = asyncio.ensure_future(self._server.stop(within_s))

    async def drained(self) -> None:
        """Returns when nothing is left; begins with what is left at once if nobody has."""
        if self._draining is None:
            self.begin_drain(0.0)
        assert self._draining is not None
        await self._draining


def _credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """gRPC asks with each handshake whether the certificates have changed."""

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        return _certificates(tls) if tls.has_changed() else None

    # It takes None for "the same as before", which its types do not know.
    return grpc.dynamic_ssl_server_credentials(
        _certificates(tls),
        fetch,  # type: ignore[arg-type]
        tls.asks_for_certificates,
    )


def _certificates(tls: ServerTls) -> grpc.ServerCertificateConfiguration:
    key, certificates, authorities = tls.files()
    return grpc.ssl_server_certificate_configuration([(key, certificates)], authorities)


def _options(max_body_bytes: int) -> list[tuple[str, Any]]:
    return [
        ("grpc.so_reuseport", 1),
        ("grpc.max_receive_message_length", _READ_OF_LIMIT * max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", _KEEP_ALIVE_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _ASKED_OFTEN_MS),
    ]


class _Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """gRPC's own, for whoever may see what the gateway shows of itself."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__((SERVICE, HEALTH, reflection.SERVICE_NAME), POOL)
        self._gateway = gateway

    async def ServerReflectionInfo(self, requests: Any, context: Context) -> AsyncIterator[Any]:  # noqa: N802
        await let_look(self._gateway, context)
        async for answer in super().ServerReflectionInfo(requests, context):
            yield answer


def _add_reflection(server: grpc.aio.Server, gateway: Gateway) -> None:
    for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        POOL.AddSerializedFile(file.serialized_pb)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(_Reflection(gateway), server)
