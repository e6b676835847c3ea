"""The OpenAPI document is true: what it allows, and what it does not, sent to a running gateway by Schemathesis."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

from tests.integration.rig import RunningGateway, canned, serving, tier
from tests.rig import EngineProcess

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "response_headers_conformance,unsupported_method"
)


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with (
        EngineProcess(token_ms=0, slots=64) as engine,
        serving(tmp_path / "gateway.yaml", tier("primary", engine, slots=64), canned()) as running,
    ):
        yield running


async def explored(gateway: RunningGateway, examples: int, folder: Path, phases: str) -> tuple[int, str]:
    """The exit status of Schemathesis, and what it said. `drain` is left out: it ends readiness, as it should."""
    command = (
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{gateway.url}/openapi.json", "--no-color"),
        *("--checks", CHECKS, "--max-examples", str(examples), "--seed", "1", "--request-timeout", "10"),
        *("--exclude-path", "/admin/drain", "--phases", phases),
    )
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=folder
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.mark.timeout(300)
async def test_no_input_is_answered_with_a_5xx(gateway: RunningGateway, tmp_path: Path) -> None:
    status, said = await explored(gateway, 4, tmp_path, "fuzzing")
    assert status == 0, said[-6000:]
    assert (await gateway.get("/health/ready"))[0] == 200


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("phases", ["examples,coverage", "fuzzing"])
async def test_no_input_of_many_is_answered_with_a_5xx(
    gateway: RunningGateway, tmp_path: Path, phases: str
) -> None:
    status, said = await explored(gateway, 400, tmp_path, phases)
    assert status == 0, said[-6000:]
    print(said[-600:])


async def test_it_names_every_route_that_clients_use(gateway: RunningGateway) -> None:

    _, body = await gateway.get("/openapi.json")
    paths = orjson.loads(body)["paths"]
    assert {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/models",
        "/status",
    } <= paths.keys()
    for operations in paths.values():
        for operation in operations.values():
            assert {"401", "404", "405", "429"} <= operation["responses"].keys()
