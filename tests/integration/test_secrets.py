"""No key, and no prompt, in anything that the gateway says of itself: not in logs, errors, pages, metrics or traces, whatever
goes wrong. A process of its own, as operators run it, at its most talkative.
"""

import asyncio
import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.integration.conftest import Engines
from tests.integration.raw import RawClient, post
from tests.integration.rig import Json, canned, tier, write_config
from tests.rig import ServerProcess, eventually, free_port

pytestmark = pytest.mark.asyncio(loop_scope="session")

CLIENTS, ADMINS, REPLICAS, STORES = "sk-client-7f3a", "admin-91bc", "sk-replica-55d0", "store-password-e2e2"
PROMPT = "the patient in room 12 asked"
SECRETS = (CLIENTS, ADMINS, REPLICAS, STORES, PROMPT, "patient")
FAULTS: tuple[Json, ...] = (
    {"kind": "none"}, {"kind": "error", "status": 500}, {"kind": "error", "status": 401}, {"kind": "error", "status": 422},
    {"kind": "error", "status": 429}, {"kind": "cut", "after_tokens": 3}, {"kind": "garbage"},
)  # fmt: skip


class Collector:
    """Takes spans, as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.taken = b""
        self.url = ""

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            lengths = [
                line.split(b":")[1]
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            ]
            self.taken += head + await reader.readexactly(int(lengths[0]) if lengths else 0)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


def config_of(engines: Engines, collector: str) -> dict[str, Any]:
    key = {"name": "one", "sha256": sha256(CLIENTS.encode()).hexdigest()}
    return {
        "keys": [key],
        "admin_key": ADMINS,
        "state_store": {"url": f"redis://user:{STORES}@127.0.0.1:{free_port()}"},
        "tracing": {"url": collector},
    }


async def test_no_key_and_no_prompt_is_told(engines: Engines, config: Path) -> None:
    collector = Collector()
    listening = await asyncio.start_server(collector.take, "127.0.0.1", 0)
    collector.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1/traces"
    ladder = [tier("primary", engines.a, api_key=REPLICAS), canned()]
    write_config(config, {"chat": ladder}, config_of(engines, collector.url))
    arguments = ("-m", "deploy", "serve", "-c", str(config), "--port", "0")
    async with ServerProcess(sys.executable, *arguments, env={"GRACEWAY_LOG": "DEBUG"}) as process:
        said = await _everything(process.url, engines, config)

        async def has_spans() -> bool:
            return bool(collector.taken)

        await eventually(has_spans)
    listening.close()
    said += collector.taken.decode("latin-1") + "".join(process.output)
    assert "graceway" in said
    assert "WARNING" in "".join(process.output) or "warning" in "".join(process.output)
    for secret in SECRETS:
        assert secret not in said, said[max(0, said.index(secret) - 300) : said.index(secret) + 100]


async def _everything(url: str, engines: Engines, config: Path) -> str:
    """All that the gateway answers, but for answers themselves, while one thing after the other goes wrong."""
    said = []
    async with aiohttp.ClientSession() as http:
        for fault in FAULTS:
            await engines.a.fault(**fault)
            for stream in (True, False):
                body = {"model": "chat", "max_tokens": 5, "stream": stream}
                body["messages"] = [{"role": "user", "content": PROMPT}]
                for bearer in (CLIENTS, CLIENTS + "x", ADMINS):
                    headers = {"authorization": f"Bearer {bearer}", "x-session-id": "s"}
                    async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
                        said.append(str(answer.headers) + await answer.text())
        for path in (
            "/status",
            "/metrics",
            "/openapi.json",
            "/",
            "/status/live",
            "/chronicle",
            "/v1/models",
            "/nothing",
        ):
            async with http.get(url + path, headers={"authorization": f"Bearer {CLIENTS}"}) as answer:
                said.append(str(answer.headers) + await answer.text())
        said.append(await _refused(url))
        config.write_text(
            json.dumps({"admin_key": ADMINS, "models": {"chat": {"tiers": [{"bakend": REPLICAS}]}}})
        )
        for bearer in (ADMINS, CLIENTS):
            headers = {"authorization": f"Bearer {bearer}"}
            async with http.post(f"{url}/admin/reload", headers=headers) as answer:
                said.append(str(answer.headers) + await answer.text())
    return "".join(said)


async def _refused(url: str) -> str:
    """What is said to requests that are none, with a key and a prompt in them."""
    said = []
    bearing = f"authorization: Bearer {CLIENTS}"
    broken = (
        f'{{"model": "chat", "messages": "{PROMPT}"',
        f'{{"model": "nobody", "messages": [{{"content": "{PROMPT}"}}]}}',
    )
    for sent in (
        *(post(body.encode(), bearing) for body in broken),
        post(PROMPT.encode(), bearing, "x\0: 1"),
    ):
        client = await RawClient.open(url)
        await client.send(sent)
        answer = await client.response()
        said.append(str(answer.headers) + answer.body.decode())
        client.close()
    return "".join(said)
