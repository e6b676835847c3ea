"""A client that sends exactly the bytes that it is told to, and keeps what comes back until the connection ends."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

Json = dict[str, Any]
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Said:
    """One response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        found: Json = json.loads(self.body)
        return found


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, url: str, **options: Any) -> "RawClient":
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port, **options))

    def close(self) -> None:
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def response(self, within_s: float = 5.0) -> Said:
        """The next response on the connection."""
        async with asyncio.timeout(within_s):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")[:-2]
            headers = {n.lower(): v for n, _, v in (line.partition(": ") for line in lines)}
            return Said(int(first.split()[1]), headers, await self._body(headers))

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await self.reader.readexactly(int(headers.get("content-length", 0)))
        parts = []
        while size := int(await self.reader.readline(), 16):
            parts.append(await self.reader.readexactly(size))
            await self.reader.readline()
        await self.reader.readline()
        return b"".join(parts)

    async def is_ended(self, within_s: float = 5.0) -> bool:
        """Whether the server closes the connection without another byte."""
        try:
            async with asyncio.timeout(within_s):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False


def chat(tokens: int = 2, **more: Any) -> bytes:
    body = {
        "model": "chat",
        "max_tokens": tokens,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "Hi"}],
    }
    return json.dumps({**body, **more}).encode()


def post(body: bytes, *headers: str, path: str = CHAT, sized: bool = True) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: gateway", "content-type: application/json"]
    lines += [f"content-length: {len(body)}"] if sized else []
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + body
