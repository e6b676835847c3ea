"""The HTTP client against a real server that says what it likes."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from gateway.failure import ExchangeFailed
from gateway.http_client import (
    IDLE_S,
    READ_AHEAD_BYTES,
    Connection,
    ConnectionPool,
    Origin,
    clean_header,
    request_bytes,
)
from tests.gateway.replica_server import CHUNKED, ReplicaServer, Script, Visit, answer, chunk, replica_server
from tests.rig import eventually, free_port


class Rig:
    """A server and a pool of connections to it."""

    def __init__(self, server: ReplicaServer) -> None:
        self.server = server
        self.origin = Origin.of(server.url)
        self.pool = ConnectionPool(self.origin)

    async def start(self, body: bytes = b"{}", fresh: bool = False) -> Connection:
        connection = await self.pool.connect(1.0, fresh)
        connection.send(request_bytes(self.origin, "/v1/x", body, {}))
        return connection

    async def ask(self, body: bytes = b"{}") -> bytes:
        """One whole exchange."""
        connection = await self.start(body)
        try:
            await connection.head()
            return await connection.read_all(1 << 30)
        finally:
            connection.finish()


@asynccontextmanager
async def rig(script: Script) -> AsyncIterator[Rig]:
    async with replica_server(script) as server:
        found = Rig(server)
        yield found
        found.pool.close()


def saying(*pieces: bytes) -> Script:
    """Each request gets these bytes."""

    async def script(visit: Visit) -> None:
        while True:
            await visit.request()
            await visit.say(*pieces)

    return script


def saying_once(*pieces: bytes) -> Script:
    """The first request gets these bytes; then the connection is closed."""

    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(*pieces)

    return script


async def failure(connection: Connection) -> str:
    """Of an exchange that must fail."""

    async def take() -> None:
        await connection.head()
        await connection.read_all(1 << 30)

    with pytest.raises(ExchangeFailed) as caught:
        await asyncio.wait_for(take(), 5)
    return caught.value.failure


async def echo(visit: Visit) -> None:
    while True:
        await visit.say(answer(await visit.request()))


class TestReuse:
    async def test_a_connection_is_used_again(self) -> None:
        async with rig(echo) as found:
            assert [await found.ask(b"%d" % n) for n in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
            assert len(found.server.visits) == 1

    async def test_as_many_as_run_at_once(self) -> None:
        async with rig(echo) as found:
            for _ in range(3):
                asked = [b"%d" % n for n in range(4)]
                assert await asyncio.gather(*map(found.ask, asked)) == asked
            assert len(found.server.visits) == 4

    @pytest.mark.parametrize(
        "said",
        [
            answer(b"x", "connection: close"),
            answer(b"x", "Connection: Close"),
            b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx",
        ],
    )
    async def test_not_after_the_server_said_that_it_closes(self, said: bytes) -> None:
        async with rig(saying(said)) as found:
            assert [await found.ask(), await found.ask()] == [b"x", b"x"]
            assert len(found.server.visits) == 2

    async def test_not_when_it_has_idled_too_long(self) -> None:
        async with rig(echo) as found:
            connection = await found.start()
            await connection.head()
            await connection.read_all(9)
            connection.finish()
            connection.idle_since -= IDLE_S
            await found.ask()
            assert len(found.server.visits) == 2

    async def test_not_when_the_server_has_closed_it_meanwhile(self) -> None:
        async with rig(saying_once(answer(b"x"))) as found:
            connection = await found.start()
            await connection.head()
            await connection.read_all(9)
            connection.finish()

            async def is_closed() -> bool:
                return not connection.is_reusable

            await eventually(is_closed)
            assert await found.ask() == b"x"
            assert len(found.server.visits) == 2

    async def test_one_closed_just_as_it_is_used_is_known_by_its_silence(self) -> None:
        """Whoever asked may ask again on a fresh one: not a byte of an answer has come."""

        async def script(visit: Visit) -> None:
            await visit.request()
            await visit.say(answer(b"x"))
            await visit.request()

        async with rig(script) as found:
            await found.ask()
            connection = await found.start()
            assert await failure(connection) == "cut"
            assert (connection.exchanges, connection.is_untouched) == (2, True)
            again = await found.start(fresh=True)
            assert await again.head() == 200
            assert (again.exchanges, again.is_untouched) == (1, False)
            again.finish()

    async def test_not_when_the_answer_was_left_half_read(self) -> None:
        async with rig(saying(answer(b"x" * 1000)[:-1])) as found:
            connection = await found.start()
            await connection.head()
            connection.finish()
            await asyncio.wait_for(found.server.visits[0].ended.wait(), 2)
            assert not connection.is_reusable

    async def test_not_when_it_stopped_reading(self) -> None:
        """A client that left before it took a large answer must not leave a deaf connection in the pool."""
        async with rig(echo) as found:
            connection = await found.start(b"x" * (READ_AHEAD_BYTES + 1))

            async def has_all() -> bool:
                return connection._is_complete

            await eventually(has_all)
            connection.finish()
            assert await asyncio.wait_for(found.ask(b"next"), 2) == b"next"

    async def test_not_when_more_came_than_the_answer(self) -> None:
        extra = answer(b"one") + answer(b"unasked")
        async with rig(saying(extra)) as found:
            assert await found.ask() == b"one"
            assert await found.ask() == b"one"
            assert len(found.server.visits) == 2

    async def test_not_when_something_came_while_it_idled(self) -> None:
        async def script(visit: Visit) -> None:
            await visit.request()
            await visit.say(answer(b"x"), answer(b"", status="408 Request Timeout"))
            await visit.gone()

        async with rig(script) as found:
            connection = await found.start()
            await connection.head()
            await connection.read_all(9)
            connection.finish()

            async def is_dropped() -> bool:
                return not connection.is_reusable

            await eventually(is_dropped)


class TestEnds:
    async def test_a_body_that_ends_with_the_connection(self) -> None:
        async with rig(saying_once(b"HTTP/1.1 200 OK\r\n\r\n", b"one ", b"two")) as found:
            assert await found.ask() == b"one two"
            assert await found.ask() == b"one two"

    @pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
    async def test_no_body(self, status: str) -> None:
        async with rig(saying(f"HTTP/1.1 {status}\r\n\r\n".encode())) as found:
            assert await asyncio.wait_for(found.ask(), 2) == b""

    async def test_interim_answers_are_not_the_answer(self) -> None:
        interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\na: hint\r\nlink: x\r\n\r\n"
        async with rig(saying(interim, answer(b"x", "a: b"))) as found:
            connection = await found.start()
            assert await connection.head() == 200
            assert connection.headers == {"content-length": "1", "a": "b"}
            assert await connection.read_all(9) == b"x"
            connection.finish()
            assert await found.ask() == b"x"
            assert len(found.server.visits) == 1

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
    async def test_an_answer_split_anywhere(self, size: int) -> None:
        data = CHUNKED + chunk(b"data: one\n\n") + chunk("日本👋".encode() * 9) + chunk(b"end") + b"0\r\n\r\n"
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        async with rig(saying(*pieces)) as found:
            for _ in range(2):
                assert await found.ask() == b"data: one\n\n" + "日本👋".encode() * 9 + b"end"
            assert len(found.server.visits) == 1

    async def test_too_large(self) -> None:
        async with rig(saying(answer(b"x" * 100))) as found:
            connection = await found.start()
            await connection.head()
            with pytest.raises(ExchangeFailed, match="larger than 99"):
                await connection.read_all(99)
            connection.finish()


class TestFailures:
    @pytest.mark.parametrize(
        "said",
        [
            (),
            (b"HTTP/1.1 200",),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n",),
            (answer(b"hello")[:-1],),
            (CHUNKED,),
            (CHUNKED, chunk(b"data: one\n\n")),
            (CHUNKED, chunk(b"data: one\n\n")[:-3]),
            (CHUNKED, chunk(b"x"), b"0\r\n"),
        ],
    )
    async def test_cut(self, said: tuple[bytes, ...]) -> None:
        async with rig(saying_once(*said)) as found:
            assert await failure(await found.start()) == "cut"

    async def test_what_came_before_the_cut_is_read(self) -> None:
        async with rig(saying_once(CHUNKED, chunk(b"one"))) as found:
            connection = await found.start()
            await connection.head()
            assert await connection.read() == b"one"
            with pytest.raises(ExchangeFailed, match="cut"):
                await connection.read()

    @pytest.mark.parametrize("said", [b"", CHUNKED + chunk(b"one"), b"HTTP/1.1 200 OK\r\n\r\nto the end of"])
    async def test_reset(self, said: bytes) -> None:
        async def script(visit: Visit) -> None:
            await visit.request()
            await visit.say(said)
            await asyncio.sleep(0.02)  # what was said arrives before the reset discards it
            visit.reset()

        async with rig(script) as found:
            # A reset is never the end of a body, however that ends.
            assert await failure(await found.start()) in ("reset", "cut")

    @pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 abc\r\n\r\n", CHUNKED + b"zz\r\n"])
    async def test_not_http(self, said: bytes) -> None:
        async with rig(saying(said)) as found:
            assert await failure(await found.start()) == "malformed"
            await asyncio.wait_for(found.server.visits[0].ended.wait(), 2)

    async def test_refused(self) -> None:
        pool = ConnectionPool(Origin.of(f"http://127.0.0.1:{free_port()}"))
        with pytest.raises(ExchangeFailed, match="refused"):
            await pool.connect(1.0)

    async def test_unreachable(self) -> None:
        pool = ConnectionPool(Origin.of("http://no-such-host.invalid:1"))
        with pytest.raises(ExchangeFailed, match="unreachable"):
            await pool.connect(5.0)

    async def test_a_host_that_does_not_answer(self) -> None:
        with socket.socket() as full:
            # A backlog of one that nobody takes: further connections get no answer.
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            fill = [socket.socket() for _ in range(4)]
            for client in fill:
                client.setblocking(False)
                client.connect_ex(full.getsockname())
            pool = ConnectionPool(Origin.of(f"http://127.0.0.1:{full.getsockname()[1]}"))
            with pytest.raises(ExchangeFailed, match="unreachable"):
                await pool.connect(0.1)
            for client in fill:
                client.close()


class TestBreakingFromOutside:
    async def test_whoever_waits_learns_at_once_and_the_replica_sees_a_closed_socket(self) -> None:
        async def script(visit: Visit) -> None:
            await visit.request()
            await visit.say(CHUNKED, chunk(b"one"))
            await visit.gone()

        async with rig(script) as found:
            connection = await found.start()
            await connection.head()
            await connection.read()
            reading = asyncio.create_task(connection.read())
            await asyncio.sleep(0)
            connection.fail(ExchangeFailed("hung", "no token"))
            with pytest.raises(ExchangeFailed, match="hung: no token"):
                await asyncio.wait_for(reading, 1)
            await asyncio.wait_for(found.server.visits[0].ended.wait(), 1)
            connection.finish()
            assert not connection.is_reusable

    async def test_before_the_status(self) -> None:
        async with rig(lambda visit: visit.gone()) as found:
            connection = await found.start()
            asyncio.get_running_loop().call_soon(connection.fail, ExchangeFailed("first_token_timeout"))
            assert await failure(connection) == "first_token_timeout"

    async def test_the_first_reason_counts(self) -> None:
        async with rig(lambda visit: visit.gone()) as found:
            connection = await found.start()
            connection.fail(ExchangeFailed("hung"))
            connection.fail(ExchangeFailed("deadline"))
            assert await failure(connection) == "hung"

    async def test_an_exchange_that_is_over_can_t_fail(self) -> None:
        async with rig(echo) as found:
            connection = await found.start(b"x")
            await connection.head()
            await connection.read_all(9)
            connection.fail(ExchangeFailed("hung"))
            connection.finish()
            assert await found.ask(b"y") == b"y"
            assert len(found.server.visits) == 1

    async def test_leaving_early_closes_the_socket(self) -> None:
        async def script(visit: Visit) -> None:
            await visit.request()
            await visit.say(CHUNKED, chunk(b"one"))
            await visit.gone()

        async with rig(script) as found:
            connection = await found.start()
            await connection.head()
            connection.finish()
            await asyncio.wait_for(found.server.visits[0].ended.wait(), 1)


class TestSlowReader:
    async def test_the_server_is_held_up_rather_than_memory_filled(self) -> None:
        sent = 0

        async def script(visit: Visit) -> None:
            nonlocal sent
            await visit.request()
            await visit.say(b"HTTP/1.1 200 OK\r\ncontent-length: 33554432\r\n\r\n")
            for _ in range(512):
                await visit.say(b"x" * 65536)
                sent += 65536

        async with rig(script) as found:
            connection = await found.start()
            await connection.head()

            async def is_paused() -> bool:
                return connection._is_paused

            await eventually(is_paused)
            assert connection._size < READ_AHEAD_BYTES + 1024 * 1024
            received = 0
            while data := await asyncio.wait_for(connection.read(), 5):
                received += len(data)
            assert received == sent == 32 * 1024 * 1024
            connection.finish()


class TestPump:
    """Bytes are given to a function in the step that reads them."""

    async def test_all_of_it_in_order(self) -> None:
        got: list[bytes] = []
        parts = [b"%d," % n for n in range(200)]
        async with rig(saying(CHUNKED, *map(chunk, parts), b"0\r\n\r\n")) as found:
            for _ in range(2):
                got.clear()
                connection = await found.start()
                await connection.head()
                await connection.pump(got.append)
                connection.finish()
                assert b"".join(got) == b"".join(parts)
            assert len(found.server.visits) == 1

    async def test_it_waits_for_a_client_that_reads_slowly(self) -> None:
        got: list[bytes] = []
        blocked = 0

        async def catch_up() -> None:
            nonlocal blocked
            blocked += 1
            before = len(got)
            await asyncio.sleep(0.005)
            assert len(got) == before

        def sink(data: bytes) -> "asyncio.Future[None] | None":
            got.append(data)
            return asyncio.ensure_future(catch_up()) if len(got) % 3 == 0 else None

        rng = Random(1)
        parts = [b"x" * rng.randrange(1, 60_000) for _ in range(60)]
        async with rig(saying(CHUNKED, *map(chunk, parts), b"0\r\n\r\n")) as found:
            connection = await found.start()
            await connection.head()
            await connection.pump(sink)
            connection.finish()
        assert b"".join(got) == b"".join(parts)
        assert blocked >= 1

    async def test_it_ends_when_the_sink_has_enough(self) -> None:
        async def script(visit: Visit) -> None:
            await visit.request()
            await visit.say(CHUNKED, chunk(b"[DONE]"))
            await asyncio.sleep(0.01)
            await visit.say(b"0\r\n\r\n")
            await echo(visit)

        async with rig(script) as found:
            connection = await found.start()
            await connection.head()
            await asyncio.wait_for(connection.pump(lambda data: connection.enough()), 1)
            connection.finish()
            # Only the end mark was missing: once it has come, the connection may be used again, at once.

            async def is_idle() -> bool:
                return bool(found.pool._idle)

            await eventually(is_idle, within_s=0.08)
            assert await found.ask(b"next") == b"next"
            assert len(found.server.visits) == 1

    async def test_one_whose_end_mark_never_comes_is_closed(self) -> None:
        async def script(visit: Visit) -> None:
            await visit.request()
            await visit.say(CHUNKED, chunk(b"[DONE]"))
            await visit.gone()

        async with rig(script) as found:
            connection = await found.start()
            await connection.head()
            await connection.pump(lambda data: connection.enough())
            connection.finish()
            await asyncio.wait_for(found.server.visits[0].ended.wait(), 2)

    async def test_the_sink_s_objection_reaches_the_one_who_pumps(self) -> None:
        def sink(data: bytes) -> None:
            raise ExchangeFailed("malformed", "no JSON")

        async with rig(saying(CHUNKED + chunk(b"x") + b"0\r\n\r\n")) as found:
            connection = await found.start()
            await connection.head()
            with pytest.raises(ExchangeFailed, match="no JSON"):
                await connection.pump(sink)
            connection.finish()

    async def test_what_came_before_a_cut_is_given_first(self) -> None:
        got: list[bytes] = []
        async with rig(saying_once(CHUNKED, chunk(b"one"), chunk(b"two"))) as found:
            connection = await found.start()
            await connection.head()
            with pytest.raises(ExchangeFailed, match="cut"):
                await connection.pump(got.append)
        assert b"".join(got) == b"onetwo"

    async def test_broken_from_outside(self) -> None:
        async def script(visit: Visit) -> None:
            await visit.request()
            await visit.say(CHUNKED, chunk(b"one"))
            await visit.gone()

        async with rig(script) as found:
            connection = await found.start()
            await connection.head()
            pumping = asyncio.create_task(connection.pump(lambda data: None))
            await asyncio.sleep(0.01)
            connection.fail(ExchangeFailed("hung"))
            with pytest.raises(ExchangeFailed, match="hung"):
                await asyncio.wait_for(pumping, 1)


@pytest.mark.parametrize(
    ("url", "expected", "host"),
    [
        ("http://h:81/", Origin("h", 81, False, ""), "h:81"),
        ("http://h", Origin("h", 80, False, ""), "h:80"),
        ("https://h/api/", Origin("h", 443, True, "/api"), "h:443"),
        ("http://[::1]:9", Origin("::1", 9, False, ""), "[::1]:9"),
    ],
)
def test_origin(url: str, expected: Origin, host: str) -> None:
    assert Origin.of(url) == expected
    assert expected.host_header == host


def test_request_bytes() -> None:
    found = request_bytes(Origin.of("http://h:81/api"), "/v1/x", b'{"a":1}', {"authorization": "Bearer k"})
    assert found == (
        b"POST /api/v1/x HTTP/1.1\r\nhost: h:81\r\ncontent-type: application/json\r\ncontent-length: 7\r\n"
        b'authorization: Bearer k\r\n\r\n{"a":1}'
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("abc", "abc"),
        ("a\r\nb", "ab"),
        ("\x00\x7f é日", " "),
        ("", ""),
        ("x" * 300, "x" * 256),
        (" a ", " a "),
    ],
)
def test_clean_header(value: str, expected: str) -> None:
    assert clean_header(value) == expected
