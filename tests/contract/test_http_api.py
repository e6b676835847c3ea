"""The outside of the HTTP API: OpenAI's own client works unmodified, and headers, refusals and pages are as promised."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.client import Question, ask, assert_refused, assert_whole
from tests.integration.rig import Json, RunningGateway, canned, serving, tier
from tests.rig import EngineProcess, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

MESSAGES: list[Any] = [{"role": "user", "content": "Tell me of rivers and rain."}]
CHAT = "/v1/chat/completions"
Both = tuple[EngineProcess, EngineProcess]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def _both() -> AsyncIterator[Both]:
    async with EngineProcess(token_ms=1) as primary, EngineProcess(token_ms=1, served_model="small") as small:
        yield primary, small


@pytest_asyncio.fixture(loop_scope="session")
async def both(_both: Both) -> Both:
    for engine in _both:
        await engine.reset()
    return _both


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "gateway.yaml"


def ladder(both: Both) -> list[Json]:
    cached: Json = {"name": "cached", "backend": "cache", "max_age_s": 60}
    return [tier("primary", both[0]), tier("small", both[1]), cached, canned("Later.")]


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(both: Both, config: Path) -> AsyncIterator[RunningGateway]:
    async with serving(config, *ladder(both)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def client(gateway: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as found:
        yield found


class Response:
    """A whole response, whatever was sent."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def error(self) -> Json:
        found: Json = json.loads(self.body)["error"]
        return found


async def send(
    gateway: RunningGateway, body: Any, path: str = CHAT, headers: dict[str, str] | None = None
) -> Response:
    async with (
        aiohttp.ClientSession() as http,
        http.post(gateway.url + path, data=body, headers=headers) as response,
    ):
        names = {k.lower(): v for k, v in response.headers.items()}
        return Response(response.status, names, await response.read())


# OpenAI's own client


async def test_its_client_gets_a_whole_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="chat", messages=MESSAGES, max_tokens=30)
    assert answer.model == "m"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    question = Question(tokens=answer.usage.completion_tokens)
    assert answer.choices[0].message.content == question.expected.text


async def test_its_client_streams_a_chat(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="chat",
        messages=MESSAGES,
        max_tokens=30,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == Question(tokens=30).expected.text
    assert {c.object for c in chunks} == {"chat.completion.chunk"}
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 30
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [
        "length"
    ]


async def test_its_client_gets_and_streams_a_completion(client: openai.AsyncOpenAI) -> None:
    question = Question("text", tokens=20)
    more = {"ignore_eos": True}
    whole = await client.completions.create(
        model="chat", prompt=question.prompt, max_tokens=20, extra_body=more
    )
    assert whole.choices[0].text == question.expected.text
    stream = await client.completions.create(
        model="chat", prompt=question.prompt, max_tokens=20, stream=True, extra_body=more
    )
    assert "".join([c.choices[0].text async for c in stream]) == question.expected.text


async def test_its_client_lists_the_models(client: openai.AsyncOpenAI) -> None:
    assert [m.id async for m in client.models.list()] == ["chat"]
    assert (await client.models.retrieve("chat")).id == "chat"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("nobody")


async def test_its_client_understands_refusals(client: openai.AsyncOpenAI, both: Both) -> None:
    with pytest.raises(openai.NotFoundError) as wrong:
        await client.chat.completions.create(model="nobody", messages=MESSAGES)
    assert (wrong.value.code, wrong.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model="chat", messages=[])
    await both[0].fault("error", status=500)
    with pytest.raises(openai.InternalServerError) as refused:
        await client.chat.completions.create(
            model="chat", messages=MESSAGES, extra_headers={"x-degradation": "never"}
        )
    assert refused.value.status_code == 503
    assert refused.value.code == "no_replica"


async def test_its_client_hears_of_a_stream_that_breaks(client: openai.AsyncOpenAI, both: Both) -> None:
    await both[0].fault("cut", after_tokens=5)
    stream = await client.chat.completions.create(
        model="chat", messages=MESSAGES, stream=True, extra_headers={"x-degradation": "never"}
    )
    said = []

    async def read() -> None:
        async for chunk in stream:
            said.append(chunk.choices[0].delta.content or "")  # noqa: PERF401 - what came before the error counts

    with pytest.raises(openai.APIError):
        await read()
    assert Question().expected.text.startswith("".join(said))


# what passes through


@pytest.mark.parametrize("kind", ["chat", "text"])
async def test_unknown_fields_pass_through_and_back(gateway: RunningGateway, both: Both, kind: Any) -> None:
    unknown: Json = {"nobody_knows": {"deep": [1, None, "ü"]}, "vllm_xargs": {"a": 1}}
    # With n=2 the gateway reads nothing into the answer.
    for more in (unknown, {**unknown, "n": 2}):
        answer = await ask(gateway.url, Question(kind, False, 5).with_(**more))
        assert answer.status == 200
        assert answer.json["system_fingerprint"]
        seen = json.loads((await both[0].requests())[-1]["body"])
        assert {k: seen[k] for k in unknown} == unknown
    assert answer.json["sim"]["unknown"] == unknown
    streamed = await ask(gateway.url, Question(kind, True, 5).with_(**unknown))
    assert any(e.get("system_fingerprint") for e in streamed.chunks)


async def test_the_engine_is_asked_by_its_own_name_for_the_model(gateway: RunningGateway, both: Both) -> None:
    await ask(gateway.url, Question())
    assert json.loads((await both[0].requests())[-1]["body"])["model"] == "m"


# the caller's own mistakes


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b"\xff\xfe", 400, None),
        (b"[]", 400, None),
        (b'"text"', 400, None),
        (b"{}", 400, "model"),
        (b'{"model": 5}', 400, "model"),
        (b'{"model": ""}', 400, "model"),
        (b'{"model": "chat", "stream": "yes", "messages": [{}], "prompt": ""}', 400, "stream"),
        (b'{"model": "nobody", "messages": [{}], "prompt": ""}', 404, "model"),
    ],
)
async def test_a_request_that_is_none_is_told_what_is_wrong(
    gateway: RunningGateway, path: str, body: bytes, status: int, param: str | None
) -> None:
    for data in (body, _chunked(body)):
        response = await send(gateway, data, path, {"x-request-id": "r-1"})
        assert response.status == status
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-request-id"] == "r-1"
        assert {"message", "type", "param", "code"} <= response.error.keys()
        assert response.error["type"] == "invalid_request_error"
        assert response.error["param"] == param


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (CHAT, "messages", None),
        (CHAT, "messages", []),
        (CHAT, "messages", "x"),
        (CHAT, "messages", ["x"]),
        ("/v1/completions", "prompt", None),
        ("/v1/completions", "prompt", 5),
    ],
)
async def test_a_request_without_a_prompt_is_a_400(
    gateway: RunningGateway, both: Both, path: str, field: str, value: object
) -> None:
    response = await send(gateway, json.dumps({"model": "chat", field: value}), path)
    assert (response.status, response.error["param"]) == (400, field)


async def _in_chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 65536):
        yield body[start : start + 65536]


def _chunked(body: bytes) -> AsyncIterator[bytes]:
    return _in_chunks(body)


def _large_body() -> bytes:
    content = "x" * 20_000_000
    return json.dumps({"model": "chat", "messages": [{"role": "user", "content": content}]}).encode()


@pytest.mark.parametrize("is_chunked", [False, True], ids=["content-length", "chunked"])
async def test_a_body_of_20_mb_is_a_413(gateway: RunningGateway, both: Both, is_chunked: bool) -> None:
    body = _large_body()
    async with httpx.AsyncClient() as http:
        for _ in range(5):
            content = _chunked(body) if is_chunked else body
            response = await http.post(gateway.url + CHAT, content=content)
            assert response.status_code == 413
            assert response.json()["error"]["type"] == "invalid_request_error"
    assert (await both[0].stats())["requests"] <= 4  # the probes alone
    assert_whole(Question(), await ask(gateway.url, Question()))


async def test_its_client_hears_that_its_request_is_too_large(client: openai.AsyncOpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "x" * 20_000_000}]
    with pytest.raises(openai.APIStatusError) as refused:
        await client.chat.completions.create(model="chat", messages=messages)
    assert refused.value.status_code == 413


async def test_a_chunked_request_is_answered_like_any_other(gateway: RunningGateway) -> None:
    for stream in (True, False):
        question = Question(stream=stream)
        response = await send(gateway, _chunked(json.dumps(question.body).encode()))
        plain = await send(gateway, json.dumps(question.body).encode())
        assert response.status == plain.status == 200
        varying = rb'"(id|created)":("[^"]*"|\d+)'
        assert re.sub(varying, b"", response.body) == re.sub(varying, b"", plain.body)
        assert response.headers["x-served-tier"] == "primary"


async def test_a_connection_is_used_again_whatever_came_over_it(gateway: RunningGateway) -> None:
    """Whole, streamed, refused, and pages in turn, on one connection."""
    connector = aiohttp.TCPConnector(limit=1)
    question = Question(tokens=5)
    async with aiohttp.ClientSession(connector=connector) as http:
        for _ in range(3):
            for body in (
                question.body,
                {**question.body, "stream": False},
                {"model": "nobody", "messages": [{}]},
            ):
                async with http.post(gateway.url + CHAT, json=body) as response:
                    assert response.status in (200, 404)
                    await response.read()
            async with http.get(gateway.url + "/v1/models") as response:
                assert response.status == 200
                await response.read()


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", CHAT), ("POST", "/v1/nothing"), ("GET", "/nothing"), ("POST", CHAT + "/"), ("GET", "/status/")],
)
async def test_what_is_not_there_is_said_in_openais_form(
    gateway: RunningGateway, method: str, path: str
) -> None:
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, gateway.url + path, allow_redirects=False) as response,
    ):
        assert response.status in (404, 405)
        assert {"message", "type", "param", "code"} <= (await response.json())["error"].keys()


@pytest.mark.parametrize("path", ["/", "/health/live", "/health/ready", "/v1/models", "/metrics", "/status"])
async def test_whatever_can_be_got_has_a_head(gateway: RunningGateway, path: str) -> None:
    async with aiohttp.ClientSession() as http:
        for method in ("HEAD", "GET"):
            async with http.request(method, gateway.url + path) as response:
                assert (response.status, bool(await response.read())) == (200, method == "GET")


# headers in


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-priority", "urgent"),
        ("x-priority", ""),
        ("x-request-timeout-seconds", "soon"),
        ("x-request-timeout-seconds", "0"),
        ("x-request-timeout-seconds", "-1"),
        ("x-request-timeout-seconds", "nan"),
        ("x-request-timeout-seconds", "inf"),
        ("x-degradation", "a little"),
        ("x-degradation", "nobody"),
    ],
)
async def test_a_header_that_makes_no_sense_is_a_400(
    gateway: RunningGateway, both: Both, name: str, value: str
) -> None:
    answer = await ask(gateway.url, Question().with_({name: value}))
    assert answer.status == 400
    assert answer.json["error"]["param"] == name
    assert answer.headers["x-request-id"] == answer.request_id


@pytest.mark.parametrize("priority", ["critical", "standard", "sheddable", "Critical"])
async def test_each_priority_is_served(gateway: RunningGateway, priority: str) -> None:
    assert_whole(Question(), await ask(gateway.url, Question().with_({"x-priority": priority})))


@pytest.mark.parametrize("stream", [True, False])
async def test_ids_are_kept_passed_on_and_returned(gateway: RunningGateway, both: Both, stream: bool) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"x-request-id": "mine-1", "traceparent": trace}
    for more in ({}, {"n": 2}):
        answer = await ask(gateway.url, Question("chat", stream, 5).with_(headers, **more))
        assert (answer.headers["x-request-id"], answer.headers["traceparent"]) == ("mine-1", trace)
        seen = (await both[0].requests())[-1]["headers"]
        assert (seen["x-request-id"], seen["traceparent"]) == ("mine-1", trace)


async def test_a_request_without_an_id_gets_one(gateway: RunningGateway) -> None:
    body = json.dumps({**Question().body, "stream": False})
    for data in (body, "{}"):
        ids = {(await send(gateway, data)).headers["x-request-id"] for _ in range(3)}
        assert len(ids) == 3


@pytest.mark.parametrize("value", ["a\tb", "ü", "x" * 1000])
async def test_a_hostile_id_is_cleaned(gateway: RunningGateway, value: str) -> None:
    body = json.dumps({**Question().body, "stream": False})
    response = await send(gateway, body, headers={"x-request-id": value})
    assert response.status == 200
    assert re.fullmatch(r"[ -~]{1,256}", response.headers["x-request-id"])


@pytest.mark.parametrize(
    ("degradation", "served"),
    [
        (None, "small"),
        ("allow", "small"),
        ("small", "small"),
        ("canned", "small"),
        ("never", None),
        ("primary", None),
    ],
)
async def test_the_lowest_accepted_tier(
    gateway: RunningGateway, both: Both, degradation: str | None, served: str | None
) -> None:
    await both[0].fault("error", status=500)
    headers = {} if degradation is None else {"x-degradation": degradation}
    answer = await ask(gateway.url, Question().with_(headers))
    if served is None:
        assert_refused(answer, 503, "no_replica")
        assert int(answer.headers["retry-after"]) >= 1
    else:
        assert_whole(Question(), answer)
        assert (answer.headers["x-served-tier"], answer.headers["x-degraded"]) == (served, "http_500")
        assert answer.models == {"small"}


# what the gateway answers itself


@pytest.mark.parametrize("kind", ["chat", "text"])
@pytest.mark.parametrize("stream", [True, False])
async def test_canned_text_says_what_it_is(
    gateway: RunningGateway, both: Both, kind: Any, stream: bool
) -> None:
    for engine in both:
        await engine.fault("error", status=500)
    question = Question(kind, stream)
    if stream:
        question = question.with_(stream_options={"include_usage": True})
    answer = await ask(gateway.url, question.with_(temperature=1))
    assert answer.status == 200
    assert (answer.text, answer.models, answer.finish_reasons) == ("Later.", {"canned"}, ["stop"])
    assert answer.headers["x-served-tier"] == "canned"
    assert answer.headers["x-served-replica"] == "gateway"
    assert answer.headers["x-degraded"] == "http_500"
    assert "age" not in answer.headers
    assert answer.dones == stream
    assert len(answer.usages) == 1


@pytest.mark.parametrize("kind", ["chat", "text"])
@pytest.mark.parametrize("is_asked_streamed", [True, False])
@pytest.mark.parametrize("is_served_streamed", [True, False])
async def test_a_cached_answer_says_whose_it_is_and_how_old(
    gateway: RunningGateway, both: Both, kind: Any, is_asked_streamed: bool, is_served_streamed: bool
) -> None:
    assert_whole(Question(kind, is_asked_streamed), await ask(gateway.url, Question(kind, is_asked_streamed)))
    for engine in both:
        await engine.fault("error", status=500)
    await asyncio.sleep(1.05)  # `age` has whole seconds
    answer = await ask(gateway.url, Question(kind, is_served_streamed))
    assert_whole(Question(kind, is_served_streamed), answer)
    assert answer.models == {"m"}
    assert answer.headers["x-served-tier"] == "cached"
    assert int(answer.headers["age"]) >= 1
    assert answer.headers["x-degraded"] == "http_500"
    other = await ask(gateway.url, Question(kind, is_served_streamed, tokens=7))
    assert other.headers["x-served-tier"] == "canned"


async def test_only_whole_greedy_answers_are_remembered(gateway: RunningGateway, both: Both) -> None:
    warm = Question().with_(temperature=0.7)
    await ask(gateway.url, warm)
    await ask(gateway.url, Question(), leave_after_tokens=3)
    for engine in both:
        await engine.fault("error", status=500)
    for question in (warm, Question()):
        assert (await ask(gateway.url, question)).headers["x-served-tier"] == "canned"


# pages


async def test_health_and_draining(gateway: RunningGateway, both: Both) -> None:
    assert (await gateway.get("/health/live"))[0] == 200
    assert (await gateway.get("/health/ready"))[0] == 200
    status, _ = await gateway.post("/admin/drain")
    assert status == 200
    assert (await gateway.get("/health/live"))[0] == 200
    assert (await gateway.get("/health/ready"))[0] == 503
    assert (await gateway.status())["draining"]
    assert_whole(Question(), await ask(gateway.url, Question()))


async def test_the_metrics_parse_and_name_what_happened(gateway: RunningGateway, both: Both) -> None:
    await ask(gateway.url, Question(tokens=9))
    await ask(gateway.url, Question(), leave_after_tokens=1)
    await both[0].fault("error", status=500)
    await ask(gateway.url, Question(tokens=5))
    await ask(gateway.url, Question().with_({"x-degradation": "never"}))
    async with aiohttp.ClientSession() as http, http.get(gateway.url + "/metrics") as response:
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = {f.name: f for f in text_string_to_metric_families(await response.text())}
    assert {
        "graceway_requests",
        "graceway_attempts",
        "graceway_ttft_seconds",
        "graceway_tokens",
    } <= families.keys()
    assert {"graceway_replica_ready", "graceway_breaker_open", "graceway_tier_routable"} <= families.keys()
    assert await gateway.metric("graceway_requests_total", tier="primary", outcome="served") == 1
    assert await gateway.metric("graceway_requests_total", tier="small", outcome="degraded") == 1
    assert await gateway.metric("graceway_shed_total", reason="no_replica") == 1
    assert await gateway.metric("graceway_ttft_seconds_count", tier="primary") == 2
    assert await gateway.metric("graceway_tokens_total", tier="small") == 5


async def test_the_status_shows_the_ladder(gateway: RunningGateway, both: Both) -> None:
    await ask(gateway.url, Question().with_({"x-session-id": "s"}))
    status = await gateway.status()
    assert status["ready"]
    assert status["sessions"] == 1
    tiers = status["models"]["chat"]["tiers"]
    assert [t["name"] for t in tiers] == ["primary", "small", "cached", "canned"]
    assert [t["serving"] for t in tiers] == [True] * 4
    replica = tiers[0]["replicas"][0]
    assert (replica["url"], replica["state"], replica["breaker"]) == (both[0].url, "ready", "closed")


@pytest.mark.parametrize("path", ["/admin/reload", "/admin/drain"])
async def test_administration_takes_the_key(both: Both, config: Path, path: str) -> None:
    async with serving(config, *ladder(both), admin_key="open sesame") as gateway:
        for headers in (None, {"authorization": "Bearer wrong"}, {"authorization": "open sesame"}):
            status, body = await gateway.post(path, headers)
            assert (status, body["error"]["code"]) == (403, "forbidden")
        assert (await gateway.get("/health/ready"))[0] == 200
        status, _ = await gateway.post(path, {"authorization": "Bearer open sesame"})
        assert status == 200


async def test_a_reload_takes_the_changed_file_whole_or_not_at_all(both: Both, config: Path) -> None:
    async with serving(config, canned("One.")) as gateway:
        for text, expected in (("Two.", 200), ("", 400)):
            config.write_text(config.read_text().replace("One.", text).replace("Two.", text))
            status, _ = await gateway.post("/admin/reload")
            assert status == expected
            assert (await ask(gateway.url, Question())).text == "Two."


async def test_what_is_in_flight_survives_a_reload(both: Both, config: Path) -> None:
    question = Question(tokens=400)
    async with serving(config, *ladder(both)) as gateway:
        task = asyncio.create_task(ask(gateway.url, question))

        async def decodes() -> bool:
            return bool((await both[0].stats())["tokens"] > 20)

        await eventually(decodes)
        await gateway.reload(canned("Changed."))
        assert (await ask(gateway.url, Question())).text == "Changed."
        assert_whole(question, await task)
