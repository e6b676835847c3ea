"""A network that fails between two servers: slow, lossy, cut, and well again; what is said arrives whole and in order."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from loadtests.cut_proxy import RESENT_AFTER_S, Proxy, proxy_to


@pytest.fixture
async def way() -> AsyncIterator[Proxy]:
    """To a server that says everything back."""

    asked: list[asyncio.Task[None]] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()
        await writer.wait_closed()

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(asyncio.create_task(echo(reader, writer)))

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with proxy_to(server.sockets[0].getsockname()[1]) as proxy:
        yield proxy
    await asyncio.gather(*asked)
    server.close()


async def said_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: bytes) -> float:
    """How long it took."""
    begun = asyncio.get_running_loop().time()
    writer.write(line)
    assert await reader.readline() == line
    return asyncio.get_running_loop().time() - begun


async def test_a_slow_way_takes_its_time_in_both_directions(way: Proxy) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", way.port)
    await said_back(reader, writer, b"quick\n")
    way.delay(0.1)
    assert 0.2 <= await said_back(reader, writer, b"slow\n") < 1.0
    way.mend()
    assert await said_back(reader, writer, b"quick again\n") < 0.2
    writer.close()


async def test_what_is_lost_comes_again_and_nothing_overtakes_it(way: Proxy) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", way.port)
    way.lose(0.3)
    times = [await said_back(reader, writer, b"%d\n" % number) for number in range(8)]
    assert max(times) >= RESENT_AFTER_S
    for number in range(20):
        writer.write(b"%d\n" % number)
        await asyncio.sleep(0.005)
    assert [await reader.readline() for _ in range(20)] == [b"%d\n" % number for number in range(20)]
    writer.close()


async def test_nothing_comes_through_a_way_that_is_cut_until_it_is_mended(way: Proxy) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", way.port)
    way.cut()
    saying = asyncio.create_task(said_back(reader, writer, b"held up\n"))
    _, waiting = await asyncio.wait([saying], timeout=0.2)
    assert waiting
    way.mend()
    assert await saying < 1.0
    writer.close()


async def test_an_end_comes_through(way: Proxy) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", way.port)
    writer.write(b"last\n")
    writer.write_eof()
    async with asyncio.timeout(2.0):
        assert await reader.read() == b"last\n"
    writer.close()
