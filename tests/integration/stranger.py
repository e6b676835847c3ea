"""A client that does not come from loopback: what it sends reaches a gateway there from an address of this machine's own."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest


def own_address() -> str:
    """An address of this machine beyond loopback, which strangers come from. No packet leaves for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address: str = probe.getsockname()[0]
        return address


@asynccontextmanager
async def from_afar(url: str) -> AsyncIterator[str]:
    """An address on loopback behind which the gateway at `url` sees strangers."""
    target, own = urlsplit(url), own_address()
    under_way: set[asyncio.Task[None]] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, on = await asyncio.open_connection(target.hostname, target.port, local_addr=(own, 0))
        for way in ((reader, on), (back, writer)):
            under_way.add(asyncio.create_task(pass_on(*way)))

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for way in under_way:
            way.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
