"""The calls of OpenAI's own client, and one over gRPC, through the gateway to a real vLLM: what the client gets is what vLLM
gives, its refusals too.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import orjson
import pytest
import pytest_asyncio

from loadtests.collector import Collector
from replicas.engines import EngineSpec
from tests.gateway.grpc_rig import grpc_at, numbers, strings, text_of
from tests.integration.rig import PATIENT, RunningGateway, serving
from tests.real.test_resume_on_vllm import MODEL, Vllm
from tests.rig import eventually

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

Json = dict[str, Any]
QUESTION: list[Any] = [{"role": "user", "content": "Name the capital of France."}]
CITIES = ["Paris", "Rome"]
WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": CITIES}}, "required": ["city"]},
    },
}
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


@dataclass
class Running:
    """A gateway before one vLLM, OpenAI's client of each, and who collects the spans of both."""

    gateway: RunningGateway
    engine: Vllm
    collector: Collector
    client: openai.AsyncOpenAI
    direct: openai.AsyncOpenAI


class TracedVllm(Vllm):
    """One that takes tools, and sends its spans to a collector."""

    def __init__(self, log_path: Path, collector: str) -> None:
        super().__init__(log_path)
        more = ("--dtype", "float32", *TOOLS, "--otlp-traces-endpoint", f"{collector}/v1/traces")
        env = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_BSP_SCHEDULE_DELAY": "200"}
        self._spec = EngineSpec(
            "vllm", str(MODEL), "smollm2", slots=4, max_model_len=512, extra_args=more, env=env
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    home = tmp_path_factory.mktemp("vllm")
    async with AsyncExitStack() as stack:
        collector = await stack.enter_async_context(Collector())
        engine = TracedVllm(home / "vllm.log", collector.url)
        stack.push_async_callback(engine.stop)
        await engine.start()
        tier = {"name": "primary", "backend": "openai", "served_model": "smollm2", "slots": 4, "slo": PATIENT}
        tier["replicas"] = [{"url": engine.url}]
        gateway = await stack.enter_async_context(
            serving(
                home / "gateway.yaml",
                tier,
                tracing={"url": collector.url},
                health={"timeout_s": 20.0},
            )
        )

        async def is_ready() -> bool:
            return (await gateway.get("/health/ready"))[0] == 200

        await eventually(is_ready, 60.0)
        client, direct = (
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120.0)
            for url in (gateway.url, engine.url)
        )
        yield Running(gateway, engine, collector, client, direct)
        await client.close()
        await direct.close()


def asking(**more: Any) -> Json:
    return {"model": "chat", "messages": QUESTION, "max_tokens": 12, "temperature": 0, **more}


async def same(running: Running, **more: Any) -> tuple[Any, Any]:
    """The answer through the gateway, and vLLM's own to the same request."""
    through = await running.client.chat.completions.create(**asking(**more))
    own = await running.direct.chat.completions.create(**asking(**more) | {"model": "smollm2"})
    return through, own


async def test_models(running: Running) -> None:
    assert [m.id async for m in running.client.models.list()] == ["chat"]
    assert (await running.client.models.retrieve("chat")).id == "chat"


async def test_a_chat(running: Running) -> None:
    through, own = await same(running)
    assert through.choices[0].message.content == own.choices[0].message.content
    assert through.choices[0].finish_reason == own.choices[0].finish_reason
    assert (through.usage.prompt_tokens, through.usage.completion_tokens) == (
        own.usage.prompt_tokens,
        own.usage.completion_tokens,
    )
    assert through.model == "smollm2"


async def test_a_stream_with_usage(running: Running) -> None:
    own = await running.direct.chat.completions.create(**asking() | {"model": "smollm2"})
    stream = await running.client.chat.completions.create(
        **asking(stream=True, stream_options={"include_usage": True})
    )
    chunks = [chunk async for chunk in stream]
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == own.choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert reasons == [own.choices[0].finish_reason]
    (usage,) = [c.usage for c in chunks if c.usage]
    assert usage.completion_tokens == own.usage.completion_tokens
    assert not chunks[-1].choices


async def test_a_stream_without_usage(running: Running) -> None:
    stream = await running.client.chat.completions.create(**asking(stream=True))
    assert not [c async for c in stream if c.usage]


def calls_of(message: Any) -> list[tuple[str, str]]:
    return [(c.function.name, c.function.arguments) for c in message.tool_calls or []]


async def streamed_calls(client: openai.AsyncOpenAI, **asked: Any) -> tuple[list[str], str]:
    """The names and the arguments of the tools that a stream calls."""
    stream = await client.chat.completions.create(**asked, stream=True)
    deltas = [chunk.choices[0].delta async for chunk in stream if chunk.choices]
    told = [part.function for delta in deltas for part in delta.tool_calls or []]
    return [f.name for f in told if f.name], "".join(f.arguments or "" for f in told)


async def test_a_tool_that_must_be_called(running: Running) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    through, own = await same(running, tools=[WEATHER], tool_choice=choice, max_tokens=60)
    assert calls_of(through.choices[0].message) == calls_of(own.choices[0].message)
    assert through.choices[0].message.content == own.choices[0].message.content
    assert through.choices[0].finish_reason == own.choices[0].finish_reason
    asked = asking(tools=[WEATHER], tool_choice=choice, max_tokens=60)
    names, arguments = await streamed_calls(running.client, **asked)
    assert (names, arguments) == await streamed_calls(running.direct, **asked | {"model": "smollm2"})
    assert names == ["weather"]


async def test_some_tool_that_must_be_called(running: Running) -> None:
    asked: Json = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 60}
    through, own = await same(running, **asked)
    assert calls_of(through.choices[0].message) == calls_of(own.choices[0].message)
    assert through.choices[0].finish_reason == own.choices[0].finish_reason
    names, arguments = await streamed_calls(running.client, **asking(**asked))
    assert (names, arguments) == await streamed_calls(
        running.direct, **asking(**asked) | {"model": "smollm2"}
    )
    assert set(names) == {"weather"}


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_a_tool_that_may_be_called(running: Running, choice: str) -> None:
    through, own = await same(running, tools=[WEATHER], tool_choice=choice)
    assert calls_of(through.choices[0].message) == calls_of(own.choices[0].message)
    assert through.choices[0].message.content == own.choices[0].message.content


async def test_what_a_tool_said(running: Running) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    told = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]
    through, own = await same(running, messages=[*QUESTION, *told], tools=[WEATHER])
    assert through.choices[0].message.content == own.choices[0].message.content
    assert through.usage.prompt_tokens == own.usage.prompt_tokens


async def test_json_by_schema(running: Running) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    schema["additionalProperties"] = False
    wanted = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema, "strict": True}}
    through, _ = await same(running, response_format=wanted, max_tokens=40)
    assert isinstance(orjson.loads(through.choices[0].message.content)["n"], int)


async def test_json_mode(running: Running) -> None:
    through, own = await same(running, response_format={"type": "json_object"}, max_tokens=30)
    assert through.choices[0].message.content == own.choices[0].message.content
    assert through.choices[0].message.content.lstrip().startswith("{")


async def test_log_probabilities(running: Running) -> None:
    through, own = await same(running, logprobs=True, top_logprobs=2, max_tokens=5)
    told, expected = through.choices[0].logprobs.content, own.choices[0].logprobs.content
    assert [t.token for t in told] == [t.token for t in expected]
    assert all(len(t.top_logprobs) == 2 for t in told)
    assert [t.logprob for t in told] == pytest.approx([t.logprob for t in expected], abs=0.05)


async def test_log_probabilities_of_a_stream(running: Running) -> None:
    asked = asking(logprobs=True, top_logprobs=2, max_tokens=5, stream=True)
    told = []
    for client, model in ((running.client, "chat"), (running.direct, "smollm2")):
        stream = await client.chat.completions.create(**asked | {"model": model})
        chunks = [chunk async for chunk in stream]
        of_tokens = [c.choices[0].logprobs for c in chunks if c.choices and c.choices[0].logprobs]
        told.append([token.token for of in of_tokens for token in of.content])
    through, own = told
    assert through == own
    assert len(through) == 5


async def test_several_choices(running: Running) -> None:
    through, _ = await same(running, n=3, temperature=1.0, seed=5)
    assert [c.index for c in through.choices] == [0, 1, 2]


async def test_several_choices_of_a_stream(running: Running) -> None:
    # vLLM takes no greedy request for several.
    sampled = asking(n=2, temperature=1.0, seed=5, extra_body={"ignore_eos": True})
    stream = await running.client.chat.completions.create(
        **sampled, stream=True, stream_options={"include_usage": True}
    )
    texts, reasons, usage = {0: "", 1: ""}, {}, None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    assert all(texts.values())
    assert reasons == {0: "length", 1: "length"}
    assert usage is not None
    assert usage.completion_tokens == 2 * 12


async def test_a_stop_string(running: Running) -> None:
    whole = (await same(running))[1].choices[0].message.content
    stop = whole[len(whole) // 2 :][:4]
    through, own = await same(running, stop=[stop])
    assert through.choices[0].message.content == own.choices[0].message.content
    assert stop not in through.choices[0].message.content
    assert through.choices[0].finish_reason == "stop"


async def test_a_seed(running: Running) -> None:
    texts = set()
    for _ in range(2):
        answer = await running.client.chat.completions.create(**asking(temperature=1.0, seed=1234))
        texts.add(answer.choices[0].message.content)
    assert len(texts) == 1


async def test_a_text_completion(running: Running) -> None:
    asked: Json = {"prompt": "1, 2, 3, 4,", "max_tokens": 8, "temperature": 0}
    through = await running.client.completions.create(model="chat", **asked)
    own = await running.direct.completions.create(model="smollm2", **asked)
    assert through.choices[0].text == own.choices[0].text
    stream = await running.client.completions.create(model="chat", stream=True, **asked)
    assert "".join([c.choices[0].text async for c in stream]) == own.choices[0].text


async def test_echo(running: Running) -> None:
    asked: Json = {"prompt": "1, 2, 3, 4,", "max_tokens": 4, "temperature": 0, "echo": True}
    through = await running.client.completions.create(model="chat", **asked)
    own = await running.direct.completions.create(model="smollm2", **asked)
    assert through.choices[0].text == own.choices[0].text
    assert through.choices[0].text.startswith("1, 2, 3, 4,")


WRONG: dict[str, tuple[str, Json]] = {
    "too long a prompt": ("chat", {"messages": [{"role": "user", "content": "word " * 2000}]}),
    "more tokens than there are": ("chat", {"max_tokens": 100_000}),
    "a temperature out of range": ("chat", {"temperature": -3}),
    "a role that is none": ("chat", {"messages": [{"role": 7, "content": "x"}]}),
    "a suffix": ("text", {"prompt": "x", "suffix": "y", "max_tokens": 4}),
    "too many log probabilities": ("chat", {"logprobs": True, "top_logprobs": 1000}),
    "a schema that is none": ("chat", {"response_format": {"type": "json_schema"}}),
}


@pytest.mark.parametrize(("kind", "more"), WRONG.values(), ids=WRONG.keys())
async def test_what_vllm_refuses(running: Running, kind: str, more: Json) -> None:
    path = "/v1/chat/completions" if kind == "chat" else "/v1/completions"
    body = asking(**more) if kind == "chat" else {"model": "chat", **more}
    async with aiohttp.ClientSession() as http:
        answers = []
        for url, model in ((running.gateway.url, "chat"), (running.engine.url, "smollm2")):
            async with http.post(url + path, json={**body, "model": model}) as answer:
                answers.append((answer.status, (await answer.json())["error"]))
    (status, error), (own_status, own_error) = answers
    assert status == own_status
    assert 400 <= status < 500
    assert (error["message"], error["type"]) == (own_error["message"], own_error["type"])
    (replica,) = (await running.gateway.replicas()).values()
    assert (replica["state"], replica["breaker"]) == ("ready", "closed")


async def test_what_the_gateway_refuses(running: Running) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await running.client.chat.completions.create(**asking(model="nobody"))
    with pytest.raises(openai.BadRequestError, match="messages"):
        await running.client.chat.completions.create(**asking(messages=[]))
    for path, body in (("/v1/responses", b"{}"), ("/tokenize", b"{}")):
        async with (
            aiohttp.ClientSession() as http,
            http.post(running.gateway.url + path, data=body) as answer,
        ):
            assert answer.status == 404
            assert (await answer.json())["error"]["code"] == "not_found"
    async with (
        aiohttp.ClientSession() as http,
        http.post(running.gateway.url + "/v1/chat/completions", data=b'{"model": ') as answer,
    ):
        assert answer.status == 400
        assert "not JSON" in (await answer.json())["error"]["message"]


async def test_no_embeddings_from_a_model_that_writes(running: Running) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        await running.client.embeddings.create(model="chat", input="rain")
    assert refused.value.status_code in (400, 404)
    (replica,) = (await running.gateway.replicas()).values()
    assert (replica["state"], replica["breaker"]) == ("ready", "closed")


async def idle(running: Running) -> None:
    async def is_idle() -> bool:
        async with (
            aiohttp.ClientSession() as http,
            http.get(running.engine.url + "/metrics") as answer,
        ):
            lines = (await answer.text()).splitlines()
        at_work = [float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{")]
        return at_work == [0.0] and await running.gateway.is_idle()

    await eventually(is_idle, 30.0)


async def test_a_client_that_leaves_frees_the_engine(running: Running) -> None:
    stream = await running.client.chat.completions.create(
        **asking(stream=True, max_tokens=400, extra_body={"ignore_eos": True})
    )
    async for _ in stream:
        break
    await stream.close()
    await idle(running)
    asked = running.client.chat.completions.create(**asking(max_tokens=400, extra_body={"ignore_eos": True}))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asked, 1.0)
    await idle(running)


async def test_a_timeout_of_the_client_and_one_that_it_declares(running: Running) -> None:
    long = asking(max_tokens=400, extra_body={"ignore_eos": True})
    with pytest.raises(openai.APITimeoutError):
        await running.client.with_options(timeout=1.0).chat.completions.create(**long)
    with pytest.raises(openai.APIStatusError) as refused:
        await running.client.chat.completions.create(**long, extra_headers={"x-request-timeout-seconds": "1"})
    assert refused.value.status_code in (429, 503)
    await idle(running)


async def test_a_trace_goes_on_in_vllm(running: Running) -> None:
    answer = await running.client.chat.completions.with_raw_response.create(**asking())
    trace_id = answer.headers["traceparent"].split("-")[1]

    async def has_both() -> bool:
        names = {s.name for s in running.collector.traces.get(trace_id, [])}
        return {"gateway", "llm_request"} <= names

    await eventually(has_both, 30.0)
    spans = {s.name: s for s in running.collector.traces[trace_id]}
    ids = {s.span_id for s in running.collector.traces[trace_id]}
    assert spans["llm_request"].parent_span_id in ids


async def test_over_grpc(running: Running) -> None:
    own = await running.direct.chat.completions.create(**asking() | {"model": "smollm2"})
    inputs = [strings("messages", orjson.dumps(QUESTION).decode()), numbers("max_tokens", "INT32", 12)]
    inputs.append(numbers("temperature", "FP32", 0.0))
    async with grpc_at(running.gateway) as grpc:
        result = await grpc.triton.infer("chat", inputs)
        assert text_of(result) == own.choices[0].message.content

        async def asks() -> AsyncIterator[Json]:
            yield {"model_name": "chat", "inputs": inputs, "request_id": "1"}

        said = ""
        async for part, error in grpc.triton.stream_infer(asks()):
            assert error is None
            said += text_of(part)
        assert said == own.choices[0].message.content
