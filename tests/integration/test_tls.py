"""TLS towards clients and replicas: who has the right certificate is served as without, anybody else is not."""

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import grpc
import grpc.aio
import pytest

from deploy.config import ConfigError
from deploy.grpc_server import GrpcServer
from deploy.status_view import StatusUnavailable, fetch_status
from deploy.top import StatusReader
from gateway.inference_pb import inference_pb2 as pb
from gateway.inference_pb.inference_pb2_grpc import GRPCInferenceServiceStub
from gateway.specs import ServerTlsSpec
from loadtests.cut_proxy import proxy_to
from tests.certificates import Authority, Pair
from tests.integration.client import Answer, Question, _read, assert_whole
from tests.integration.client import ask as ask_plainly
from tests.integration.conftest import Engines
from tests.integration.raw import RawClient, chat, post
from tests.integration.rig import Json, canned, serving, tier, write_config
from tests.rig import EngineProcess, ServerProcess, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ASKED = Question(tokens=30)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "theirs")


def server(pair: Pair, clients: Authority | None = None) -> Json:
    tls: Json = {"cert_file": pair.cert, "key_file": pair.key}
    return {"tls": tls | ({} if clients is None else {"client_ca_file": clients.file})}


async def ask(url: str, context: ssl.SSLContext, question: Question = ASKED) -> Answer:
    """Raises aiohttp.ClientConnectionError when TLS is refused."""
    answer = Answer("tls")
    headers = {"x-request-id": "tls"}
    connector = aiohttp.TCPConnector(ssl=context, force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.post(f"{url}/v1/chat/completions", json=question.body, headers=headers) as response,
    ):
        answer.status = response.status
        answer.headers = {k.lower(): v for k, v in response.headers.items()}
        await _read(answer, response, None)
    return answer


async def is_refused(url: str, context: ssl.SSLContext) -> bool:
    try:
        await ask(url, context)
    except (aiohttp.ClientConnectionError, ConnectionError, ssl.SSLError):
        return True
    return False


# clients


@pytest.mark.parametrize("stream", [True, False])
async def test_clients_are_served_under_tls(
    engines: Engines, config: Path, authority: Authority, stranger: Authority, stream: bool
) -> None:
    question = Question(tokens=30, stream=stream)
    async with serving(
        config, tier("primary", engines.a), server=server(authority.sign("gateway"))
    ) as gateway:
        assert gateway.url.startswith("https://")
        assert_whole(question, await ask(gateway.url, authority.client(), question))
        assert await is_refused(gateway.url, stranger.client())
        plain = await RawClient.open(gateway.url)
        await plain.send(post(chat()))
        assert await plain.reader.read() == b""
        plain.close()


async def test_only_certificates_of_the_clients_authority_are_let_in(
    engines: Engines, config: Path, authority: Authority, stranger: Authority
) -> None:
    mutual = server(authority.sign("gateway"), authority)
    async with serving(config, tier("primary", engines.a), server=mutual) as gateway:
        assert_whole(ASKED, await ask(gateway.url, authority.client(authority.sign("client"))))
        assert await is_refused(gateway.url, authority.client())
        assert await is_refused(gateway.url, authority.client(stranger.sign("client")))
        assert await is_refused(gateway.url, authority.client(authority.sign("late", has_expired=True)))


async def test_a_certificate_lets_an_operator_look(
    engines: Engines, config: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = authority.sign("operator")
    monkeypatch.setenv("SSL_CERT_FILE", authority.file)
    mutual = server(authority.sign("gateway"), authority)
    async with serving(config, tier("primary", engines.a), server=mutual) as gateway:
        with pytest.raises(StatusUnavailable):
            await asyncio.to_thread(fetch_status, gateway.url)
        monkeypatch.setenv("GRACEWAY_CLIENT_CERT", own.cert)
        monkeypatch.setenv("GRACEWAY_CLIENT_KEY", own.key)
        assert (await asyncio.to_thread(fetch_status, gateway.url))["ready"]
        with closing(StatusReader(gateway.url)) as reader:
            assert (await asyncio.to_thread(reader.read))["ready"]
        monkeypatch.setenv("GRACEWAY_CLIENT_KEY", authority.file)
        with pytest.raises(StatusUnavailable):
            await asyncio.to_thread(fetch_status, gateway.url)


async def test_an_expired_certificate_of_the_gateway_is_refused_by_clients_and_by_the_config(
    engines: Engines, config: Path, authority: Authority
) -> None:
    with pytest.raises(ConfigError, match="has expired"):
        async with serving(
            config, tier("primary", engines.a), server=server(authority.sign("gateway", has_expired=True))
        ):
            pass


async def _serial(url: str, context: ssl.SSLContext) -> str:
    parts = urlsplit(url)
    _, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context)
    found = writer.get_extra_info("peercert")["serialNumber"]
    writer.transport.abort()
    return str(found)


async def test_renewed_certificates_are_taken_up_and_broken_ones_are_not(
    engines: Engines, config: Path, authority: Authority, stranger: Authority
) -> None:
    pair = authority.sign("gateway")
    async with serving(config, tier("primary", engines.a), server=server(pair, authority)) as gateway:
        own = authority.sign("client")
        client = authority.client(own)
        first = await _serial(gateway.url, client)
        assert await _serial(gateway.url, client) == first
        old_key = Path(pair.key).read_bytes()
        authority.sign("gateway")
        new_key = Path(pair.key).read_bytes()
        Path(pair.key).write_bytes(old_key)
        assert await _serial(gateway.url, client) == first  # half a renewal
        Path(pair.key).write_bytes(new_key)
        renewed = await _serial(gateway.url, client)
        assert renewed != first
        # An authority that is replaced counts no more.
        Path(authority.file).write_bytes(Path(stranger.file).read_bytes())
        assert await is_refused(gateway.url, client)
        client.load_cert_chain(stranger.sign("client").cert, stranger.sign("client").key)
        assert_whole(ASKED, await ask(gateway.url, client))


async def test_a_client_that_does_not_shake_hands_holds_nobody_up(
    engines: Engines, config: Path, authority: Authority
) -> None:
    async with serving(
        config, tier("primary", engines.a), server=server(authority.sign("gateway"))
    ) as gateway:
        silent = [await RawClient.open(gateway.url) for _ in range(50)]
        assert_whole(ASKED, await ask(gateway.url, authority.client()))
        for client in silent:
            client.close()


@pytest.mark.parametrize("is_mutual", [False, True])
async def test_grpc_is_under_the_same_tls(
    engines: Engines, config: Path, authority: Authority, stranger: Authority, is_mutual: bool
) -> None:
    pair, own = authority.sign("gateway"), authority.sign("client")
    spec = ServerTlsSpec(
        cert_file=pair.cert, key_file=pair.key, client_ca_file=authority.file if is_mutual else None
    )
    mine = _channel(authority, own) if is_mutual else _channel(authority)
    wrong = [_channel(stranger, own)] + (
        [_channel(authority), _channel(authority, stranger.sign("x"))] * is_mutual
    )
    async with serving(config, tier("primary", engines.a)) as gateway:
        running = GrpcServer(gateway.gateway, "127.0.0.1", 0, spec)
        address = f"localhost:{await running.start()}"
        try:
            assert await _is_live(address, mine)
            for credentials in wrong:
                assert not await _is_live(address, credentials)
            authority.sign("gateway")
            assert await _is_live(address, mine)
        finally:
            await running.drained()


def _channel(trusted: Authority, own: Pair | None = None) -> grpc.ChannelCredentials:
    root = Path(trusted.file).read_bytes()
    if own is None:
        return grpc.ssl_channel_credentials(root)
    return grpc.ssl_channel_credentials(root, Path(own.key).read_bytes(), Path(own.cert).read_bytes())


async def _is_live(address: str, credentials: grpc.ChannelCredentials) -> bool:
    async with grpc.aio.secure_channel(address, credentials) as channel:
        try:
            answer = await GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest(), timeout=3)
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        return bool(answer.live)


# replicas


@asynccontextmanager
async def behind_tls(context: ssl.SSLContext, *engines: EngineProcess) -> AsyncIterator[list[str]]:
    """The engines' addresses under TLS."""
    async with AsyncExitStack() as stack:
        ports = [int(engine.url.rpartition(":")[2]) for engine in engines]
        proxies = [await stack.enter_async_context(proxy_to(port, context)) for port in ports]
        yield [f"https://localhost:{proxy.port}" for proxy in proxies]


def shows(authority: Authority, pair: Pair | None = None) -> dict[str, Any]:
    own = {} if pair is None else {"cert_file": pair.cert, "key_file": pair.key}
    return {"ca_file": authority.file, **own}


async def test_replicas_are_reached_under_mutual_tls_and_streams_go_on(
    engines: Engines, config: Path, authority: Authority
) -> None:
    context = authority.server(authority.sign("replica"), asks=True)
    async with behind_tls(context, *engines.primary) as urls:
        primary = tier("primary", *urls, **shows(authority, authority.sign("gateway")))
        async with serving(config, primary) as gateway:
            await engines.a.fault("cut", after_tokens=7, times=1)
            assert_whole(ASKED, await ask_plainly(gateway.url, ASKED))
            assert await gateway.metric("graceway_resumes_total") == 1


@pytest.mark.parametrize("wrong", ["authority", "no certificate", "foreign certificate"])
async def test_a_replica_that_can_not_be_trusted_gets_nothing(
    engines: Engines, config: Path, authority: Authority, stranger: Authority, wrong: str
) -> None:
    await engines.a.reset()
    context = authority.server(authority.sign("replica"), asks=True)
    with_ = {
        "authority": shows(stranger, authority.sign("gateway")),
        "no certificate": shows(authority),
        "foreign certificate": shows(authority, stranger.sign("gateway")),
    }[wrong]
    async with (
        behind_tls(context, engines.a) as (url,),
        serving(
            config, tier("primary", url, **with_), health={"interval_s": 0.1, "down_after": 1}
        ) as gateway,
    ):

        async def is_down() -> bool:
            return (await gateway.replicas())[url]["state"] != "ready"

        await eventually(is_down)
        assert (await ask_plainly(gateway.url, ASKED)).status == 503
    assert (await engines.a.stats())["requests"] == 0


async def test_a_renewed_certificate_is_shown_to_replicas(
    engines: Engines, config: Path, authority: Authority, stranger: Authority
) -> None:
    own = stranger.sign("gateway")
    context = authority.server(authority.sign("replica"), asks=True)
    async with behind_tls(context, engines.a) as (url,):
        soon = {"interval_s": 0.1, "up_after": 1}
        async with serving(config, tier("primary", url, **shows(authority, own)), health=soon) as gateway:
            assert (await gateway.replicas())[url]["state"] != "ready"
            right = authority.sign("gateway")
            Path(own.key).write_bytes(Path(right.key).read_bytes())
            Path(own.cert).write_bytes(Path(right.cert).read_bytes())

            async def is_ready() -> bool:
                return (await gateway.replicas())[url]["state"] == "ready"

            await eventually(is_ready)


# as a process


async def test_graceway_serve_speaks_tls(config: Path, authority: Authority) -> None:
    write_config(config, {"chat": [canned()]}, {"server": server(authority.sign("gateway"))})
    async with ServerProcess(
        sys.executable, "-m", "deploy", "serve", "-c", str(config), "--port", "0"
    ) as process:
        assert process.url.startswith("https://")
        answer = await ask(process.url, authority.client())
        assert (answer.status, answer.headers["x-served-tier"]) == (200, "canned")
