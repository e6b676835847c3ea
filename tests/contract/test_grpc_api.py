"""The outside of the gRPC API: Triton's own client works unmodified, and errors, metadata and streams are as promised."""

import asyncio
import hashlib
import json
import queue
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
import tritonclient.grpc as triton
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tritonclient.utils import InferenceServerException

from gateway.inference_pb import inference_pb2 as pb
from loadtests.processes import ROOT
from loadtests.tokens import expected_answer
from tests.gateway.grpc_rig import (
    RunningGrpc,
    asks,
    grpc_at,
    listed,
    message,
    numbers,
    parameters,
    parameters_of,
    prompt_of,
    strings,
    text_of,
)
from tests.integration.client import Kind, Question, ask
from tests.integration.rig import Json, RunningGateway, canned, serving, tier
from tests.rig import EngineProcess, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

KINDS = pytest.mark.parametrize("kind", ["chat", "text"])
ABORTED_WITHIN_S = 0.1
LONG = 3000
"""Tokens: more than any test waits for."""
Engines = tuple[EngineProcess, EngineProcess, EngineProcess]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def _engines() -> AsyncIterator[Engines]:
    async with (
        EngineProcess(token_ms=1) as a,
        EngineProcess(token_ms=1) as b,
        EngineProcess(token_ms=1, served_model="small") as small,
    ):
        yield a, b, small


@pytest_asyncio.fixture(loop_scope="session")
async def engines(_engines: Engines) -> Engines:
    for engine in _engines:
        if not engine.is_running:
            await engine.restart()
        await engine.reset()
    return _engines


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "gateway.yaml"


@asynccontextmanager
async def serving_grpc(
    config: Path, *tiers: Json, **sections: Any
) -> AsyncIterator[tuple[RunningGateway, RunningGrpc]]:
    async with serving(config, *tiers, **sections) as gateway, grpc_at(gateway) as running:
        yield gateway, running


@pytest_asyncio.fixture(loop_scope="session")
async def api(engines: Engines, config: Path) -> AsyncIterator[RunningGrpc]:
    """Two replicas of a primary, one of a small tier."""
    async with serving_grpc(config, tier("primary", *engines[:2]), tier("small", engines[2])) as (_, running):
        yield running


# what it says about itself


async def test_liveness_readiness_and_metadata(api: RunningGrpc) -> None:
    client = api.triton
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("chat")
    assert not await client.is_model_ready("nobody")
    assert not await client.is_model_ready("chat", "2")
    assert await client.is_model_ready("chat", headers={"x-degradation": " SMALL "})
    assert (await client.get_server_metadata()).name == "graceway"
    metadata = await client.get_model_metadata("chat")
    assert {t.name for t in metadata.inputs} >= {"text_input", "messages", "request"}
    assert {t.name for t in metadata.outputs} >= {"text_output", "finish_reason", "model", "token_ids"}
    index = await client.get_model_repository_index()
    assert [(m.name, m.version, m.state) for m in index.models] == [("chat", "1", "READY")]
    with pytest.raises(InferenceServerException, match="does not exist") as raised:
        await client.get_model_metadata("nobody")
    assert raised.value.status() == "StatusCode.NOT_FOUND"


async def test_a_model_is_ready_while_an_accepted_tier_can_serve(engines: Engines, config: Path) -> None:
    health: Json = {"interval_s": 0.05, "timeout_s": 0.5}
    async with serving_grpc(
        config, tier("primary", engines[0]), tier("small", engines[2]), health=health
    ) as (
        _,
        api,
    ):

        async def ready(lowest: str) -> bool:
            return bool(await api.triton.is_model_ready("chat", headers={"x-degradation": lowest}))

        async def primary_is_gone() -> bool:
            return not await ready("never")

        assert await ready("never")
        await engines[0].kill()
        await eventually(primary_is_gone)
        assert await ready("allow")
        assert await ready("small")
        assert not await ready("primary")
        assert await api.triton.is_server_ready()
        await engines[2].kill()

        async def none_is_left() -> bool:
            return not await ready("allow")

        await eventually(none_is_left)
        assert not await api.triton.is_server_ready()


async def test_the_health_service(api: RunningGrpc) -> None:
    health = health_pb2_grpc.HealthStub(api.channel)
    for service in ("", "inference.GRPCInferenceService", "chat"):
        response = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert response.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await health.Check(health_pb2.HealthCheckRequest(service="nobody"))
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND
    assert set((await health.List(health_pb2.HealthListRequest())).statuses) >= {"", "chat"}


async def test_health_is_told_when_it_changes_and_ends_with_the_drain(engines: Engines, config: Path) -> None:
    async with serving_grpc(config, tier("primary", engines[0])) as (gateway, api):
        watch = health_pb2_grpc.HealthStub(api.channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        gateway.gateway.begin_drain()
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await watch.read() is grpc.aio.EOF


async def test_reflection_describes_all_services(api: RunningGrpc) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(api.channel)
    call = stub.ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    services = [s.name for s in (await call.read()).list_services_response.service]
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= set(services)
    for symbol in services:
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
        assert (await call.read()).file_descriptor_response.file_descriptor_proto, symbol
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


# whole answers


@KINDS
async def test_a_whole_answer(api: RunningGrpc, kind: Kind) -> None:
    question = Question(kind, stream=False)
    result = await api.triton.infer(
        "chat", [prompt_of(question)], request_id="mine", parameters=parameters_of(question)
    )
    assert text_of(result) == question.expected.text
    assert result.as_numpy("finish_reason").tolist() == [b"length"]
    assert result.as_numpy("model").tolist() == [b"m"]
    assert result.as_numpy("token_ids") is None
    response = result.get_response()
    assert (response.id, response.model_name) == ("mine", "m")
    told = parameters(response)
    assert (told["prompt_tokens"], told["completion_tokens"]) == (len(question.prompt_ids), question.tokens)


async def test_fields_as_tensors(api: RunningGrpc) -> None:
    question = Question("text", stream=False, tokens=12)
    inputs = [
        prompt_of(question),
        numbers("max_tokens", "INT32", 12),
        numbers("temperature", "FP32", 0.0),
        numbers("ignore_eos", "BOOL", True),
        numbers("stream", "BOOL", False),
        strings("stop", "no such text", "nor this"),
    ]
    result = await api.triton.infer("chat", inputs)
    assert text_of(result) == question.expected.text


async def test_a_whole_request_of_openais_api(api: RunningGrpc) -> None:
    question = Question("chat", stream=False).with_(return_token_ids=True)
    result = await api.triton.infer("chat", [strings("request", json.dumps(question.body))])
    assert text_of(result) == question.expected.text
    assert result.as_numpy("token_ids").tolist() == list(question.expected.ids)
    body = json.loads(result.as_numpy("response")[0])
    assert body["choices"][0]["message"]["content"] == question.expected.text
    assert body["usage"]["completion_tokens"] == question.tokens


async def test_only_the_outputs_that_are_asked_for(api: RunningGrpc) -> None:
    question = Question("text", stream=False)
    wanted = [triton.InferRequestedOutput("token_ids"), triton.InferRequestedOutput("text_output")]
    result = await api.triton.infer(
        "chat", [prompt_of(question)], parameters=parameters_of(question), outputs=wanted
    )
    assert result.as_numpy("token_ids").tolist() == list(question.expected.ids)
    assert {o.name for o in result.get_response().outputs} == {"token_ids", "text_output"}


async def test_choices(api: RunningGrpc) -> None:
    question = Question("text", stream=False, tokens=5).with_(n=3)
    result = await api.triton.infer("chat", [prompt_of(question)], parameters=parameters_of(question))
    assert result.as_numpy("choice").tolist() == [0, 1, 2]
    assert len(result.as_numpy("text_output")) == 3


async def test_which_prompt_a_part_belongs_to(api: RunningGrpc) -> None:
    prompts = ["Say one", "Say two"]
    request = {
        "model_name": "chat",
        "inputs": [strings("text_input", *prompts)],
        "parameters": {"max_tokens": 5, "ignore_eos": True},
    }
    said = ["", ""]
    for result, error in await collect(api, request):
        assert error is None
        said[result.as_numpy("choice")[0]] += text_of(result)
    assert said == [Question("text", tokens=5, prompt=prompt).expected.text for prompt in prompts]


async def test_metadata_goes_in_and_comes_out(api: RunningGrpc, engines: Engines) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    given = (
        ("x-request-id", "r-1"),
        ("traceparent", trace),
        ("x-session-id", "s"),
        ("x-priority", "critical"),
    )
    call = api.stub.ModelInfer(message(Question("text", tokens=3)), metadata=given)
    told = dict(await call.initial_metadata())
    response = await call
    assert listed(response, "text_output") == [Question("text", tokens=3).expected.text.encode()]
    assert (told["x-request-id"], told["traceparent"], told["x-served-tier"]) == ("r-1", trace, "primary")
    assert told["x-served-replica"] in engines[0].url + engines[1].url
    assert "x-degraded" not in told
    seen = [r for e in engines[:2] for r in await e.requests() if r["headers"].get("x-request-id") == "r-1"]
    assert [r["headers"]["traceparent"] for r in seen] == [trace]


async def test_a_session_stays_on_its_replica(api: RunningGrpc) -> None:
    async def replica(sequence: int) -> str:
        result = await api.triton.infer(
            "chat",
            [prompt_of(Question("text"))],
            sequence_id=sequence,
            parameters={"max_tokens": 1, "ignore_eos": True},
        )
        return str(parameters(result.get_response())["x-served-replica"])

    for sequence in range(1, 9):
        assert len({await replica(sequence) for _ in range(4)}) == 1


async def test_a_session_is_the_same_one_by_http(engines: Engines, config: Path) -> None:
    question = Question("text", tokens=1)
    async with serving_grpc(config, tier("primary", *engines[:2])) as (gateway, api):
        for session in ("plain", "süß"):
            answer = await ask(gateway.url, question.with_(headers={"x-session-id": session}))
            told = [answer.headers]
            for name in ("x-session-id", "sequence_id"):
                response = await api.stub.ModelInfer(message(question.with_(**{name: session}, stream=False)))
                told.append(parameters(response))
            assert [t["x-session-turn"] for t in told] == ["1", "2", "3"]
            assert len({t["x-session-epoch"] for t in told}) == 1


async def test_degradation_is_disclosed(engines: Engines, config: Path) -> None:
    await engines[0].kill()
    async with serving_grpc(config, tier("primary", engines[0]), tier("small", engines[2])) as (_, api):
        call = api.stub.ModelInfer(message(Question("text", tokens=3)))
        told, response = dict(await call.initial_metadata()), await call
        assert (told["x-served-tier"], told["x-degraded"]) == ("small", "no_replica")
        assert (response.model_name, listed(response, "model")) == ("small", [b"small"])
        assert parameters(response)["x-degraded"] == "no_replica"


# streams


async def collect(
    api: RunningGrpc, *requests: dict[str, Any], headers: dict[str, str] | None = None
) -> list[tuple[Any, Exception | None]]:
    async def given() -> AsyncIterator[dict[str, Any]]:
        for request in requests:
            yield request

    return [pair async for pair in api.triton.stream_infer(given(), headers=headers)]


@KINDS
async def test_a_stream_of_tokens(api: RunningGrpc, kind: Kind) -> None:
    question = Question(kind).with_(return_token_ids=True)
    pairs = await collect(api, asks(question))
    assert [error for _, error in pairs if error] == []
    results = [result for result, _ in pairs]
    assert "".join(map(text_of, results)) == question.expected.text
    assert [int(i) for r in results for i in r.as_numpy("token_ids")] == list(question.expected.ids)
    assert [r.as_numpy("finish_reason")[0] for r in results if r.as_numpy("finish_reason")[0]] == [b"length"]
    assert {r.as_numpy("model")[0] for r in results} == {b"m"}
    assert len(results) >= question.tokens
    assert {r.get_response().id for r in results} == {"1"}
    assert parameters(results[0].get_response())["x-served-tier"] == "primary"


async def test_a_stream_says_what_it_used_and_when_it_is_over(api: RunningGrpc) -> None:
    question = Question("text", tokens=4).with_(
        stream_options='{"include_usage": true}', triton_enable_empty_final_response=True
    )
    call = api.stub.ModelStreamInfer()
    await call.write(message(question))
    await call.done_writing()
    *parts, usage, last = [r.infer_response async for r in call]
    assert b"".join(v for r in parts for v in listed(r, "text_output")).decode() == question.expected.text
    assert parameters(usage)["completion_tokens"] == 4
    assert [parameters(r)["triton_final_response"] for r in (*parts, usage, last)] == [False] * (
        len(parts) + 1
    ) + [True]
    assert not last.outputs


async def test_an_answer_in_one_piece_on_a_stream(api: RunningGrpc) -> None:
    question = Question("text").with_(stream=False)
    ((result, error),) = await collect(api, asks(question))
    assert error is None
    assert text_of(result) == question.expected.text


async def test_requests_of_one_stream_run_at_the_same_time(api: RunningGrpc, engines: Engines) -> None:
    """The long one comes first and ends last; a wrong one between them fails alone."""
    long, short = Question("text", tokens=400), Question("text", tokens=5, prompt="Another")
    pairs = await collect(
        api, asks(long, "long"), asks(Question(model="nobody"), "wrong"), asks(short, "short")
    )
    ids = [result.get_response().id for result, error in pairs if not error]
    assert ids[-1] == "long"
    assert ids.index("short") < len(ids) - 100
    for question, id_ in ((long, "long"), (short, "short")):
        said = "".join(text_of(r) for r, e in pairs if not e and r.get_response().id == id_)
        assert said == question.expected.text
    (error,) = [e for _, e in pairs if e]
    assert "[NOT_FOUND] The model `nobody` does not exist" in str(error)


async def test_an_error_ends_the_stream_with_a_status_if_asked(api: RunningGrpc) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await collect(api, asks(Question(model="nobody")), headers={"triton_grpc_error": "true"})
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


async def test_an_error_on_a_stream_has_its_code_and_id_for_programs(api: RunningGrpc) -> None:
    call = api.stub.ModelStreamInfer(metadata=(("x-request-id", "r-4"),))
    await call.write(message(Question("text", model="nobody"), id="wrong"))
    await call.done_writing()
    (response,) = [r async for r in call]
    assert "does not exist" in response.error_message
    assert response.infer_response.id == "wrong"
    told = parameters(response.infer_response)
    assert told == {"error_code": "NOT_FOUND", "x-request-id": "r-4", "triton_final_response": True}


async def test_the_threaded_client(api: RunningGrpc) -> None:
    question = Question("text")

    def run() -> list[Any]:
        got: queue.Queue[Any] = queue.Queue()
        with triton.InferenceServerClient(api.address) as client:
            client.start_stream(lambda result, error: got.put(error or result))
            client.async_stream_infer(enable_empty_final_response=True, **asks(question))
            results = []
            while (
                not results or not results[-1].get_response().parameters["triton_final_response"].bool_param
            ):
                results.append(got.get(timeout=20))
                assert not isinstance(results[-1], Exception), results[-1]
            client.stop_stream()
            assert client.infer("chat", [prompt_of(question)], parameters=parameters_of(question))
        return results

    results = await asyncio.to_thread(run)
    assert "".join(map(text_of, results)) == question.expected.text


async def test_the_documents_example(api: RunningGrpc) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/grpc.md").read_text(), re.DOTALL)
    program = example.replace("127.0.0.1:9000", api.address)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    printed = (await process.communicate())[0].decode()
    expected = expected_answer("The capital of France is", 20)
    assert process.returncode == 0
    assert printed.startswith(f"{expected.text} m\n"), printed
    assert printed.count("\n") > len(expected.ids)


# faults in mid-stream


@KINDS
@pytest.mark.parametrize("kind_of_fault", ["die", "cut", "malformed"])
async def test_a_stream_goes_on_when_its_replica_fails(
    engines: Engines, config: Path, kind: Kind, kind_of_fault: str
) -> None:
    question = Question(kind).with_(return_token_ids=True)
    await engines[0].fault(kind=kind_of_fault, after_tokens=15, times=1)
    async with serving_grpc(config, tier("primary", *engines[:2], probe=None)) as (_, api):
        call = api.stub.ModelStreamInfer(metadata=(("x-request-id", "r-2"),))
        await call.write(message(question))
        await call.done_writing()
        responses = [r async for r in call]
        assert [r.error_message for r in responses if r.error_message] == []
        said = [r.infer_response for r in responses]
        assert b"".join(v for r in said for v in listed(r, "text_output")).decode() == question.expected.text
        assert [i for r in said for i in listed(r, "token_ids")] == list(question.expected.ids)
        begun = dict(await call.initial_metadata())["x-served-replica"]
        ended = dict(await call.trailing_metadata())["x-served-replica"]
        assert begun in engines[0].url
        assert ended in engines[1].url
        told = [parameters(r).get("x-served-replica") for r in said]
        assert [t for t in told if t] == [begun, ended]


@pytest.mark.usefixtures("brief_hope")
async def test_a_stream_that_cannot_go_on_says_so(engines: Engines, config: Path) -> None:
    question = Question("text")
    for engine in engines[:2]:
        await engine.fault(kind="cut", after_tokens=15)
    # A replica that left rotation stays out for longer than a broken stream waits for it.
    slow_to_trust = {"up_after": 50}
    async with serving_grpc(config, tier("primary", *engines[:2], probe=None), health=slow_to_trust) as (
        _,
        api,
    ):
        pairs = await collect(api, asks(question))
        assert question.expected.text.startswith("".join(text_of(r) for r, e in pairs if not e))
        error = pairs[-1][1]
        assert [e for _, e in pairs if e] == [error]
        assert "[UNAVAILABLE] the stream broke" in str(error)
        assert not any(r.as_numpy("finish_reason")[0] for r, e in pairs if not e)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await collect(api, asks(question), headers={"triton_grpc_error": "true"})
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE


# clients that leave


@pytest.mark.parametrize("way", ["whole", "stream"])
async def test_a_call_that_is_cancelled_stops_at_the_replica(
    engines: Engines, config: Path, way: str
) -> None:
    question = Question("text", tokens=LONG)
    async with serving_grpc(config, tier("primary", engines[0], probe=None)) as (gateway, api):
        if way == "whole":
            call = api.stub.ModelInfer(message(question))
        else:
            call = api.stub.ModelStreamInfer()
            await call.write(message(question))

        async def decodes() -> bool:
            return bool((await engines[0].stats())["tokens"] >= 5)

        async def stopped() -> bool:
            stats = await engines[0].stats()
            return bool(stats["aborted"] == 1 and not stats["running"])

        running = asyncio.ensure_future(_ended(call))
        await eventually(decodes)
        left_at = time.monotonic()
        call.cancel()
        await eventually(stopped)
        assert time.monotonic() - left_at < ABORTED_WITHIN_S
        await running
        await eventually(gateway.is_idle)


async def _read(call: Any) -> None:
    if isinstance(call, grpc.aio.UnaryUnaryCall):
        await call
    else:
        async for _ in call:
            pass


async def _ended(call: Any) -> None:
    with pytest.raises(asyncio.CancelledError):
        await _read(call)


async def test_a_deadline_that_passes_stops_at_the_replica(engines: Engines, config: Path) -> None:
    question = Question("text", tokens=LONG)
    async with serving_grpc(config, tier("primary", engines[0], probe=None)) as (gateway, api):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await api.stub.ModelInfer(message(question), timeout=0.3)
        assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED

        async def stopped() -> bool:
            return not (await engines[0].stats())["running"]

        await eventually(stopped, 2.0)
        await eventually(gateway.is_idle)


async def test_a_client_that_reads_nothing_loses_its_slot(engines: Engines, config: Path) -> None:
    """Well before its answer ends; what is left of its stream says why."""
    only = tier("primary", engines[0], slots=1, probe=None)
    async with serving_grpc(config, only, limits={"write_timeout_s": 0.3}) as (_, api):
        call = api.stub.ModelStreamInfer()
        # Each response carries the id, so that little is sent before nothing more fits.
        await call.write(message(Question("text", tokens=20_000), id="x" * 100_000))
        await call.read()
        question = Question("text", tokens=3, stream=False)
        whole = await api.stub.ModelInfer(message(question), timeout=30)
        assert listed(whole, "text_output") == [question.expected.text.encode()]
        error = await error_of(_until_the_end(call))
        assert (error.code(), "unread" in error.details()) == (grpc.StatusCode.UNAVAILABLE, True)


async def _until_the_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_client_that_leaves_what_it_did_not_read_is_no_error_of_ours(
    engines: Engines, config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    only = tier("primary", engines[0], slots=1, probe=None)
    async with serving_grpc(config, only, limits={"write_timeout_s": 0.1}) as (gateway, api):
        call = api.stub.ModelStreamInfer()
        await call.write(message(Question("text", tokens=20_000), id="x" * 100_000))
        await call.read()
        await eventually(gateway.is_idle)
        call.cancel()
        assert await api.triton.is_server_live()
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == []


async def test_who_reads_nothing_is_asked_for_no_more(engines: Engines, config: Path) -> None:
    """Errors, and answers in one piece, wait for nobody: they were kept however many a client asked for."""
    async with serving_grpc(config, tier("primary", engines[0], probe=None)) as (_, api):
        call = api.stub.ModelStreamInfer()
        wrong = pb.ModelInferRequest(model_name="nobody", id="x" * 100_000)

        async def asks_on() -> None:
            for _ in range(2000):
                await asyncio.wait_for(call.write(wrong), 1.0)

        with pytest.raises(TimeoutError):
            await asks_on()


async def test_a_client_may_often_ask_whether_the_server_is_there(engines: Engines, config: Path) -> None:
    """While it waits for a first token, in which time the server sends nothing."""
    await engines[0].fault(kind="slow", factor=6000)
    keeps_asking = [("grpc.keepalive_time_ms", 1000), ("grpc.http2.max_pings_without_data", 0)]
    async with (
        serving_grpc(config, tier("primary", engines[0], probe=None)) as (_, api),
        grpc.aio.insecure_channel(api.address, options=keeps_asking) as channel,
    ):
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        assert await infer(message(Question("text", tokens=1)).SerializeToString(), timeout=20)


# refusals


async def error_of(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    error: grpc.aio.AioRpcError = raised.value
    return error


def details_of(error: grpc.aio.AioRpcError) -> tuple[dict[str, Any], Status]:
    trailing = dict(error.trailing_metadata())
    return trailing, Status.FromString(trailing["grpc-status-details-bin"])


WRONG = {
    "no prompt": (pb.ModelInferRequest(model_name="chat"), "INVALID_ARGUMENT", "must hold the prompt"),
    "no such model": (message(Question("text", model="nobody")), "NOT_FOUND", "does not exist"),
    "no such version": (message(Question("text"), model_version="7"), "NOT_FOUND", "does not exist"),
    "streaming in one piece": (
        message(Question("text").with_(stream=True)),
        "INVALID_ARGUMENT",
        "takes ModelStreamInfer",
    ),
    "a priority that is none": (
        message(Question("text").with_(**{"x-priority": "urgent"})),
        "INVALID_ARGUMENT",
        "x-priority",
    ),
    "a tier that is none": (
        message(Question("text").with_(**{"x-degradation": "bronze"})),
        "INVALID_ARGUMENT",
        "x-degradation",
    ),
    "what the replica finds wrong": (
        message(Question("text", tokens=-3)),
        "INVALID_ARGUMENT",
        "max_tokens",
    ),
}


@pytest.mark.parametrize("case", WRONG)
async def test_the_callers_own_mistake(api: RunningGrpc, case: str) -> None:
    request, code, text = WRONG[case]
    error = await error_of(api.stub.ModelInfer(request, metadata=(("x-request-id", "r-3"),)))
    assert (error.code(), text in error.details()) == (grpc.StatusCode[code], True), error.details()
    assert details_of(error)[0]["x-request-id"] == "r-3"


async def test_a_replicas_refusal_says_whose_it_is(api: RunningGrpc, engines: Engines) -> None:
    wrong = Question("text", tokens=-3)
    error = await error_of(api.stub.ModelInfer(message(wrong)))
    (response,) = [r async for r in api.stub.ModelStreamInfer(iter([message(wrong)]))]
    for told in (details_of(error)[0], parameters(response.infer_response)):
        assert told["x-served-tier"] == "primary"
        assert told["x-served-replica"] in engines[0].url + engines[1].url
        assert told["x-request-id"]


async def test_a_message_that_is_none(api: RunningGrpc) -> None:
    method = "/inference.GRPCInferenceService/ModelInfer"
    error = await error_of(api.channel.unary_unary(method)(b"\xff\xff\xff\xff"))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    call = api.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
    await call.write(b"\xff\xff\xff\xff")
    await call.write(message(Question("text", tokens=3)).SerializeToString())
    await call.done_writing()
    first, *rest = [pb.ModelStreamInferResponse.FromString(data) async for data in call]
    assert "[INVALID_ARGUMENT]" in first.error_message
    assert [r.error_message for r in rest] == [""] * len(rest)
    said = b"".join(v for r in rest for v in listed(r.infer_response, "text_output"))
    assert said.decode() == Question("text", tokens=3).expected.text


async def test_a_request_that_is_too_large(engines: Engines, config: Path) -> None:
    async with serving_grpc(config, tier("primary", engines[0], probe=None), max_body_bytes=4096) as (_, api):
        huge = Question("text", prompt="x" * 5000)
        error = await error_of(api.stub.ModelInfer(message(huge)))
        # gRPC's own code for a message over the limit.
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await engines[0].stats())["requests"] == 0


async def test_on_a_stream_a_request_that_is_too_large_fails_alone(engines: Engines, config: Path) -> None:
    good, huge = Question("text", tokens=200), Question("text", prompt="x" * 5000)
    async with serving_grpc(config, tier("primary", engines[0], probe=None), max_body_bytes=4096) as (_, api):
        pairs = await collect(api, asks(good, "good"), asks(huge, "huge"))
        assert "".join(text_of(r) for r, e in pairs if not e) == good.expected.text
        (error,) = [e for _, e in pairs if e]
        assert "larger than 4096 bytes" in str(error)


@pytest.mark.parametrize("case", WRONG)
async def test_every_refusal_has_an_id(api: RunningGrpc, case: str) -> None:
    """That of the request, of its stream, or a new one."""
    request, _, _ = WRONG[case]
    error = await error_of(api.stub.ModelInfer(request))
    assert re.fullmatch("[0-9a-f]{32}", details_of(error)[0]["x-request-id"])
    named = pb.ModelInferRequest()
    named.CopyFrom(request)
    named.parameters["x-request-id"].string_param = "its-own"
    error = await error_of(api.stub.ModelInfer(named, metadata=(("x-request-id", "r-5"),)))
    assert details_of(error)[0]["x-request-id"] == "its-own"


async def test_contention_says_when_to_come_again(engines: Engines, config: Path) -> None:
    await engines[0].fault(kind="slow", factor=20)
    only = tier("primary", engines[0], slots=1, probe=None, slo={"ttft_s": 0.2, "itl_s": 0.2})
    async with serving_grpc(config, only) as (gateway, api):
        busy = [asyncio.create_task(ask(gateway.url, Question("text", tokens=100))) for _ in range(30)]

        async def refused() -> grpc.aio.AioRpcError | None:
            try:
                await api.stub.ModelInfer(message(Question("text", tokens=100)), timeout=1.0)
            except grpc.aio.AioRpcError as error:
                return error if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED else None
            return None

        found: list[grpc.aio.AioRpcError] = []

        async def is_refused() -> bool:
            if (error := await refused()) is not None:
                found.append(error)
            return bool(found)

        await eventually(is_refused, 20.0)
        trailing, status = details_of(found[0])
        assert trailing["x-shed-reason"] in ("deadline", "queue_full")
        assert int(trailing["retry-after"]) >= 1
        assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        retry, info = RetryInfo(), ErrorInfo()
        assert any(d.Unpack(retry) for d in status.details)
        assert any(d.Unpack(info) for d in status.details)
        assert retry.retry_delay.ToNanoseconds() > 0
        assert (info.domain, info.reason) == ("graceway", trailing["x-shed-reason"].upper())
        for task in busy:
            task.cancel()
        await asyncio.wait(busy)


async def test_nothing_that_the_caller_accepts(engines: Engines, config: Path) -> None:
    await engines[0].kill()
    async with serving_grpc(config, tier("primary", engines[0]), canned()) as (_, api):
        whole = message(Question("text"))
        assert listed(await api.stub.ModelInfer(whole), "text_output") == [b"Please come back later."]
        error = await error_of(api.stub.ModelInfer(whole, metadata=(("x-degradation", "never"),)))
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        trailing, status = details_of(error)
        assert trailing["x-shed-reason"] == "no_replica"
        retry = RetryInfo()
        assert any(d.Unpack(retry) for d in status.details)


async def test_a_deadline_that_has_passed_has_its_own_code(api: RunningGrpc) -> None:
    question = Question("text", tokens=LONG).with_(**{"x-request-timeout-seconds": "0.3"})
    error = await error_of(api.stub.ModelInfer(message(question)))
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED


# keys


def key(secret: str, **more: Any) -> Json:
    return {"name": secret, "sha256": hashlib.sha256(secret.encode()).hexdigest(), **more}


def bearing(secret: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {secret}"),)


async def test_keys_are_asked_for(engines: Engines, config: Path) -> None:
    keys = [key("one"), key("other", models=["another"]), key("few", requests_per_minute=1)]
    async with serving_grpc(config, tier("primary", engines[0]), keys=keys) as (_, api):
        request = message(Question("text", tokens=2))
        assert (await api.stub.ModelInfer(request, metadata=bearing("one"))).model_name == "m"
        assert await api.triton.is_server_ready()
        for given, code in (
            (None, "UNAUTHENTICATED"),
            ("guess", "UNAUTHENTICATED"),
            ("other", "PERMISSION_DENIED"),
        ):
            error = await error_of(api.stub.ModelInfer(request, metadata=bearing(given) if given else None))
            assert error.code() == grpc.StatusCode[code]
        await api.stub.ModelInfer(request, metadata=bearing("few"))
        error = await error_of(api.stub.ModelInfer(request, metadata=bearing("few")))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        trailing, _ = details_of(error)
        assert trailing["x-shed-reason"] == "rate_limited"
        assert int(trailing["retry-after"]) > 1


async def test_nobody_is_told_to_come_too_early(engines: Engines, config: Path) -> None:
    """In whole seconds, as HTTP says it, the wait is not shorter than RetryInfo's: 60 s over 14 is 4.3."""
    keys = [key("few", requests_per_minute=14)]
    async with serving_grpc(config, tier("primary", engines[0]), keys=keys) as (gateway, api):
        request = message(Question("text", tokens=1))
        calls = [api.stub.ModelInfer(request, metadata=bearing("few")) for _ in range(15)]
        (error,) = [
            r for r in await asyncio.gather(*calls, return_exceptions=True) if isinstance(r, Exception)
        ]
        assert isinstance(error, grpc.aio.AioRpcError)
        trailing, status = details_of(error)
        retry = RetryInfo()
        assert any(d.Unpack(retry) for d in status.details)
        assert int(trailing["retry-after"]) >= retry.retry_delay.ToNanoseconds() / 1e9
        answer = await ask(gateway.url, Question("text").with_(headers={"authorization": "Bearer few"}))
        assert answer.headers["retry-after"] == trailing["retry-after"]


# the end


async def test_a_drain_lets_what_runs_finish_and_takes_no_more(engines: Engines, config: Path) -> None:
    question = Question("text", tokens=300)
    async with serving_grpc(config, tier("primary", engines[0])) as (gateway, api):
        idle, busy = api.stub.ModelStreamInfer(), api.stub.ModelStreamInfer()
        await busy.write(message(question))
        await busy.done_writing()
        first = await busy.read()
        await idle.wait_for_connection()
        gateway.gateway.begin_drain()
        api.server.begin_drain(20.0)
        assert await idle.read() is grpc.aio.EOF
        rest = [first]
        while (response := await busy.read()) is not grpc.aio.EOF:
            rest.append(response)
        said = b"".join(v for r in rest for v in listed(r.infer_response, "text_output"))
        assert said.decode() == question.expected.text
        await asyncio.wait_for(api.server.drained(), 5.0)
        async with grpc.aio.insecure_channel(api.address) as channel:
            late = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=1.0)
            error = await error_of(late)
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
