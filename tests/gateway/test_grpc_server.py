"""gRPC under `graceway serve`: one process or several on the port, the taken port, the drain; and the generated code."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import grpc.aio
import pytest

from gateway.grpc_api import peer_host
from gateway.inference_pb import inference_pb2 as pb
from gateway.inference_pb.inference_pb2_grpc import GRPCInferenceServiceStub
from loadtests.processes import ROOT
from tests.gateway.grpc_rig import listed, message
from tests.integration.client import Question
from tests.integration.rig import canned, tier, write_config
from tests.rig import EngineProcess, ServerProcess, free_port


def serve(config: Path, *more: str) -> ServerProcess:
    return ServerProcess(sys.executable, "-m", "deploy", "serve", "-c", str(config), "--port", "0", *more)


@pytest.mark.parametrize("workers", [1, 2])
async def test_it_serves_beside_http(tmp_path: Path, workers: int) -> None:
    config, port = tmp_path / "c.yaml", free_port()
    write_config(config, {"chat": [canned("Later.")]}, {"server": {"grpc_port": port}})
    async with serve(config, "--workers", str(workers)) as server:
        # As many connections as it takes to reach every process.
        for _ in range(8):
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
                stub = GRPCInferenceServiceStub(channel)
                response = await stub.ModelInfer(message(Question("text")), timeout=10)
                assert listed(response, "text_output") == [b"Later."]
        server.signal(signal.SIGTERM)
        assert await server.ended() == 0


async def test_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    config, of_config, port = tmp_path / "c.yaml", free_port(), free_port()
    write_config(config, {"chat": [canned()]}, {"server": {"grpc_port": of_config}})
    async with serve(config, "--grpc-port", str(port)):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert (
                await GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest(), timeout=10)
            ).live
        async with grpc.aio.insecure_channel(f"127.0.0.1:{of_config}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest(), timeout=10)
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_port_that_is_taken(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    write_config(config, {"chat": [canned()]}, {})
    async with EngineProcess() as engine:
        taken = engine.url.rsplit(":", 1)[1]
        server = serve(config, "--grpc-port", taken)
        with pytest.raises(RuntimeError, match=f"127.0.0.1:{taken} is taken. .* --grpc-port"):
            await server.start()


async def test_sigterm_lets_a_stream_finish(tmp_path: Path) -> None:
    config, port, question = tmp_path / "c.yaml", free_port(), Question("text", tokens=100)
    async with EngineProcess(token_ms=10) as engine:
        write_config(config, {"chat": [tier("primary", engine)]}, {"server": {"grpc_port": port}})
        async with serve(config) as server, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = GRPCInferenceServiceStub(channel).ModelStreamInfer(timeout=30)
            await call.write(message(question))
            said = []
            while (response := await call.read()) is not grpc.aio.EOF:
                assert not response.error_message
                said += listed(response.infer_response, "text_output")
                if len(said) == 10:
                    # The client's side of the stream stays open: the server ends it.
                    server.signal(signal.SIGTERM)
            assert b"".join(said).decode() == question.expected.text
            assert await server.ended() == 0


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:5000", "10.0.0.7"),
        ("ipv6:%5B::1%5D:5000", "::1"),
        ("ipv6:[fe80::1]:80", "fe80::1"),
        ("unix:/tmp/socket", ""),
    ],
)
def test_where_a_call_comes_from(peer: str, host: str) -> None:
    class Call:
        def peer(self) -> str:
            return peer

    assert peer_host(Call()) == host  # type: ignore[arg-type]


def test_generated_code_is_what_the_protocol_says(tmp_path: Path) -> None:
    """The same as `make protos` writes, so that a changed .proto can't be forgotten."""
    source = "gateway/inference_pb/inference.proto"
    out = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT), *out, source], cwd=ROOT, check=True
    )
    for name in ("inference_pb2.pyi", "inference_pb2_grpc.py"):
        fresh = (tmp_path / "gateway" / "inference_pb" / name).read_text()
        assert fresh == (ROOT / "gateway" / "inference_pb" / name).read_text()
    serialized = re.compile(r"AddSerializedFile\(.*\)")
    fresh = (tmp_path / "gateway" / "inference_pb" / "inference_pb2.py").read_text()
    kept = (ROOT / "gateway" / "inference_pb" / "inference_pb2.py").read_text()
    assert serialized.findall(fresh) == serialized.findall(kept)
