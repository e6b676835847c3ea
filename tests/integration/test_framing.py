"""Where a request begins and ends is never in doubt: what two readers could read differently is refused, and no byte of a
client's headers reaches a replica. At the socket, on the hot routes and on the others.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.raw import CHAT, RawClient, chat, post
from tests.integration.rig import RunningGateway, serving, tier
from tests.rig import EngineProcess

pytestmark = pytest.mark.asyncio(loop_scope="session")

BODY = chat()
INNER = b"POST /admin/drain HTTP/1.1\r\nhost: gateway\r\ncontent-length: 0\r\n\r\n"
"""What is smuggled: a second request inside the first one's body."""
PATHS = (CHAT, "/admin/pin")
"""One of the hot routes and one of the others."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def engine() -> AsyncIterator[EngineProcess]:
    async with EngineProcess(token_ms=1) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(
    engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningGateway]:
    async with serving(
        tmp_path_factory.mktemp("framing") / "gateway.yaml", tier("primary", engine)
    ) as running:
        yield running


async def refused(gateway: RunningGateway, sent: bytes) -> int:
    """The status of the one response to this; the connection must be over, and nothing else have been done."""
    client = await RawClient.open(gateway.url)
    try:
        await client.send(sent)
        said = await client.response()
        assert said.json["error"]["type"] == "invalid_request_error"
        assert said.headers["connection"] == "close"
        assert await client.is_ended()
    finally:
        client.close()
    assert not (await gateway.status())["draining"]
    return said.status


SIZED = "content-length: %d"
CHUNKED = "transfer-encoding: chunked"


@pytest.mark.parametrize(
    "headers",
    [
        (CHUNKED, "content-length: 4"),
        ("content-length: 4", CHUNKED),
        ("content-length: 4", "content-length: 40"),
        ("content-length: 4, 40",),
        ("content-length: +4",),
        ("content-length: -4",),
        ("content-length: 0x4",),
        ("content-length: 4 4",),
        ("content-length: 99999999999999999999999",),
        ("content-length : 4",),
        ("transfer-encoding: chunked, identity",),
        ("transfer-encoding: xchunked",),
        ("transfer-encoding: chunked\x0b",),
        ("transfer-encoding : chunked",),
        ("x-a: 1\r\n folded: 2",),
        ("x-a: 1\n" + CHUNKED,),
        ("x-a: 1\r" + CHUNKED,),
        ("x-a: 1\x00" + CHUNKED,),
        ("\x00: 1",),
        (": 1",),
        ("no colon",),
        ("x\ta: 1",),
        ("x-ü: 1",),
    ],
)
async def test_framing_that_is_in_doubt_is_refused(gateway: RunningGateway, headers: tuple[str, ...]) -> None:
    for path in PATHS:
        sent = post(b"0\r\n\r\n" + INNER, *headers, path=path, sized=False)
        assert await refused(gateway, sent) == 400


@pytest.mark.parametrize(
    "start",
    [
        b"POST %b HTTP/1.1\nhost: a\n\n",
        b"POST %b HTTP/1.1 \r\nhost: a\r\n\r\n",
        b"POST %b HTTP/9.9\r\nhost: a\r\n\r\n",
        b"POST %b\r\nhost: a\r\n\r\n",
        b"POST\x00%b HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST %b\x00 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST %b\x80 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"P\xd6ST %b HTTP/1.1\r\nhost: a\r\n\r\n",
        b"CONNECT %b HTTP/1.1\r\nhost: a\r\n\r\n",
    ],
)
async def test_a_start_line_that_is_none_is_refused(gateway: RunningGateway, start: bytes) -> None:
    for path in PATHS:
        assert await refused(gateway, start % path.encode()) == 400


@pytest.mark.parametrize(
    "sent", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"\x00" * 64]
)
async def test_another_protocol_is_refused(gateway: RunningGateway, sent: bytes) -> None:
    assert await refused(gateway, sent) == 400


@pytest.mark.parametrize(
    "chunks",
    [
        b"ffffffffffffffffffff\r\n",
        b"-1\r\na\r\n0\r\n\r\n",
        b"0x1\r\na\r\n0\r\n\r\n",
        b"1 \r\na\r\n0\r\n\r\n",
        b"1\na\r\n0\r\n\r\n",
        b"1\r\nabc\r\n0\r\n\r\n",
        b"1\r\na0\r\n\r\n",
        b"1;a\x00b\r\na\r\n0\r\n\r\n",
        b"\r\na\r\n",
    ],
)
async def test_chunks_that_are_none_are_refused(gateway: RunningGateway, chunks: bytes) -> None:
    for path in PATHS:
        assert await refused(gateway, post(chunks + INNER, CHUNKED, path=path, sized=False)) == 400


async def test_a_client_of_before_chunks_gets_none(gateway: RunningGateway) -> None:
    client = await RawClient.open(gateway.url)
    try:
        await client.send(post(chat(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        async with asyncio.timeout(5.0):
            head, _, body = (await client.reader.read()).partition(b"\r\n\r\n")
    finally:
        client.close()
    assert b" 200 " in head.splitlines()[0]
    assert b"transfer-encoding" not in head
    assert body.startswith(b"data: {")
    assert body.endswith(b"}\n\ndata: [DONE]\n\n")


async def test_requests_in_a_row_are_answered_in_order(gateway: RunningGateway) -> None:
    client = await RawClient.open(gateway.url)
    ids = [f"x-request-id: {n}" for n in range(6)]
    stream = chat(stream=True)
    await client.send(
        post(BODY, ids[0]) + post(stream, ids[1]) + post(b"{", ids[2]) + post(BODY, ids[3])
        + b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n" + post(stream, ids[5])
    )  # fmt: skip
    said = [await client.response() for _ in range(6)]
    assert [s.status for s in said] == [200, 200, 400, 200, 200, 200]
    assert [s.headers.get("x-request-id", "4") for s in said] == ["0", "1", "2", "3", "4", "5"]
    assert said[1].body.endswith(b"data: [DONE]\n\n")
    client.close()


async def test_garbage_behind_a_request_ends_the_connection_not_the_process(gateway: RunningGateway) -> None:
    client = await RawClient.open(gateway.url)
    await client.send(post(chat(200, stream=True)) + b"garbage\r\n\r\n")
    # The stream that is under way is not mixed with an answer to the garbage.
    rest = await client.reader.read()
    assert b"400" not in rest
    client.close()
    assert (await gateway.get("/health/live"))[0] == 200


@pytest.mark.parametrize("upgrade", ["h2c", "websocket", "TLS/1.0"])
async def test_an_upgrade_is_not_taken(gateway: RunningGateway, upgrade: str) -> None:
    """Some clients offer one with each request; it is served as the request that it is."""
    offers = [f"upgrade: {upgrade}", "connection: upgrade, http2-settings", "http2-settings: AAMAAABk"]
    offers += ["sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==", "sec-websocket-version: 13"]
    client = await RawClient.open(gateway.url)
    for _ in range(2):
        sent = post(BODY, *offers)
        await client.send(sent[:-9])
        await asyncio.sleep(0.01)
        await client.send(sent[-9:] + post(BODY))
        assert [(await client.response()).status for _ in range(2)] == [200, 200]
    await client.send("\r\n".join(["GET /status HTTP/1.1", "host: a", *offers, "", ""]).encode())
    assert (await client.response()).status == 200
    client.close()


async def test_an_upgrade_hides_no_request_in_its_body(gateway: RunningGateway) -> None:
    client = await RawClient.open(gateway.url)
    offer = ("upgrade: h2c", "connection: upgrade")
    await client.send(post(b"", *offer, f"content-length: {len(INNER)}", sized=False))
    await asyncio.sleep(0.01)
    await client.send(INNER + b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n")
    assert [(await client.response()).status for _ in range(2)] == [400, 200]
    client.close()
    assert not (await gateway.status())["draining"]
    assert await refused(gateway, post(b"0\r\n\r\n" + INNER, *offer, CHUNKED, sized=False)) == 400


async def test_a_trailer_is_no_header(gateway: RunningGateway) -> None:
    client = await RawClient.open(gateway.url)
    chunks = b"%x\r\n%b\r\n0\r\nx-priority: nonsense\r\nx-request-id: trailer\r\n\r\n" % (len(BODY), BODY)
    await client.send(post(chunks, CHUNKED, "x-request-id: mine", sized=False))
    said = await client.response()
    assert (said.status, said.headers["x-request-id"]) == (200, "mine")
    client.close()


async def test_what_goes_to_replicas_is_built_not_copied(
    gateway: RunningGateway, engine: EngineProcess
) -> None:
    await engine.reset()
    hostile = (
        "x-evil: 1", "authorization: Bearer sk-client", "cookie: a=b", "x-forwarded-for: 1.2.3.4", "te: trailers",
        "x-request-id: a\tb\xffc", "x-session-id: s\xfe", "traceparent: \xe9vil", "accept-encoding: gzip", "host: other",
        "connection: x-evil, keep-alive",
    )  # fmt: skip
    for chunked in (False, True):
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY) if chunked else BODY
        more = (CHUNKED,) if chunked else ()
        client = await RawClient.open(gateway.url)
        await client.send(post(body, *hostile, *more, sized=not chunked))
        said = await client.response()
        assert (said.status, said.headers["x-request-id"]) == (200, "abc")
        client.close()
    seen = [r for r in await engine.requests() if r["headers"].get("x-request-id") == "abc"]
    assert len(seen) == 2
    for request in seen:
        allowed = {"host", "content-type", "content-length", "x-request-id", "traceparent", "tracestate"}
        assert not request["headers"].pop("has_authorization", False)
        assert set(request["headers"]) <= allowed
        assert all(str(value).isascii() for value in request["headers"].values())


@pytest.mark.parametrize("pieces", [1, 40, 40_000], ids=["at once", "in pieces", "in large pieces"])
async def test_a_large_body_in_pieces_is_read_to_its_end(gateway: RunningGateway, pieces: int) -> None:
    client = await RawClient.open(gateway.url)
    body = chat(padding="x" * (400 if pieces == 40 else 1_000_000))
    sent = post(body)
    size = pieces if pieces > 1 else len(sent)
    for start in range(0, len(sent), size):
        await client.send(sent[start : start + size])
    assert (await client.response()).status == 200
    client.close()
