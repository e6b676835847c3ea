"""The simulated engine over HTTP: vLLM's shapes, its queue, and clients that leave."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest

from loadtests.tokens import LEADS, decode, encode, expected_answer, prompt_ids
from tests.rig import EngineProcess, eventually

QUESTION = [{"role": "user", "content": "how are you"}]
CHAT = {"model": "m", "messages": QUESTION, "max_tokens": 40, "ignore_eos": True}


@pytest.fixture
async def engine() -> AsyncIterator[EngineProcess]:
    async with EngineProcess(slots=2, token_ms=5, name="one") as process:
        yield process


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


async def events(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> list[Any]:
    """The data of each event, parsed but for [DONE]."""
    async with http.post(url, json=body | {"stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        text = (await response.read()).decode()
    data = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


async def test_openais_client_gets_the_expected_answer(engine: EngineProcess) -> None:
    expected = expected_answer(QUESTION, 40, ignore_eos=True)
    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none") as client:
        extra = {"ignore_eos": True}
        whole = await client.chat.completions.create(
            model="m", messages=QUESTION, max_tokens=40, extra_body=extra
        )
        stream = await client.chat.completions.create(
            model="m", messages=QUESTION, max_tokens=40, extra_body=extra, stream=True
        )
        streamed = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert whole.choices[0].message.content == expected.text == "".join(streamed)
    assert whole.choices[0].finish_reason == "length"
    assert len(streamed) == 41


async def test_a_chat_stream_has_vllms_shape(engine: EngineProcess, http: aiohttp.ClientSession) -> None:
    body = CHAT | {"return_token_ids": True, "stream_options": {"include_usage": True}}
    role, *tokens, usage, done = await events(http, f"{engine.url}/v1/chat/completions", body)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert role["prompt_token_ids"] == prompt_ids(QUESTION)
    assert {tuple(event) for event in tokens[:-1]} == {("id", "object", "created", "model", "choices")}
    ids = [token_id for event in tokens for token_id in event["choices"][0]["token_ids"]]
    assert tuple(ids) == expected_answer(QUESTION, 40, ignore_eos=True).ids
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 39 + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 40
    assert usage["usage"]["total_tokens"] == 40 + len(prompt_ids(QUESTION))
    assert done == "[DONE]"


async def test_half_a_character_is_an_empty_delta(engine: EngineProcess, http: aiohttp.ClientSession) -> None:
    body = CHAT | {"max_tokens": 400, "return_token_ids": True}
    await engine.stop()
    engine._options["token_ms"] = 0
    await engine.restart()
    _, *tokens, _ = await events(http, f"{engine.url}/v1/chat/completions", body)
    choices = [event["choices"][0] for event in tokens]
    halves = [number for number, choice in enumerate(choices[:-1]) if choice["token_ids"][0] in LEADS]
    assert halves
    for number in halves:
        assert choices[number]["delta"]["content"] == ""
        assert len(choices[number + 1]["delta"]["content"]) == 1


@pytest.mark.parametrize("cut", [1, 5, 39])
async def test_it_goes_on_from_ids_and_from_text(
    engine: EngineProcess, http: aiohttp.ClientSession, cut: int
) -> None:
    whole = expected_answer(QUESTION, 40, ignore_eos=True)
    seen = list(whole.ids[:cut])
    if seen[-1] in LEADS:
        seen.pop()
    rest = {"model": "m", "max_tokens": 40 - len(seen), "ignore_eos": True}
    from_ids = rest | {"prompt": prompt_ids(QUESTION) + seen}
    said = {"role": "assistant", "content": decode(seen)}
    from_text = rest | {"messages": [*QUESTION, said], "continue_final_message": True}
    from_text |= {"add_generation_prompt": False}
    async with http.post(f"{engine.url}/v1/completions", json=from_ids) as response:
        text = (await response.json())["choices"][0]["text"]
    async with http.post(f"{engine.url}/v1/chat/completions", json=from_text) as response:
        content = (await response.json())["choices"][0]["message"]["content"]
    assert decode(seen) + text == decode(seen) + content == whole.text


async def test_a_prompt_that_ends_inside_a_character_gives_the_prompts_text_back(
    engine: EngineProcess, http: aiohttp.ClientSession
) -> None:
    ids = encode("a😀")[:-1]
    body = {"model": "m", "prompt": ids, "max_tokens": 1}
    async with http.post(f"{engine.url}/v1/completions", json=body) as response:
        text = (await response.json())["choices"][0]["text"]
    assert text[0] == "a"
    assert len(text) == 2


async def test_a_stop_string_ends_before_it_and_is_held_back(
    engine: EngineProcess, http: aiohttp.ClientSession
) -> None:
    whole = expected_answer(QUESTION, 40, ignore_eos=True).text
    stop = whole[30:36]
    body = CHAT | {"stop": [stop, "not there"]}
    _, *tokens, _ = await events(http, f"{engine.url}/v1/chat/completions", body)
    text = "".join(event["choices"][0]["delta"]["content"] for event in tokens)
    assert text == whole[: whole.index(stop)]
    assert tokens[-1]["choices"][0]["finish_reason"] == "stop"
    assert tokens[-1]["choices"][0]["stop_reason"] == stop


async def test_n_prompts_and_choices_are_numbered_through(
    engine: EngineProcess, http: aiohttp.ClientSession
) -> None:
    body = {"model": "m", "prompt": ["a", [1, 2]], "n": 2, "max_tokens": 4, "ignore_eos": True}
    async with http.post(f"{engine.url}/v1/completions", json=body) as response:
        answer = await response.json()
    texts = [choice["text"] for choice in answer["choices"]]
    prompts: list[Any] = ["a", [1, 2]]
    expected = [expected_answer(p, 4, ignore_eos=True, index=i).text for p in prompts for i in (0, 1)]
    assert texts == expected
    assert answer["usage"]["completion_tokens"] == 16


async def test_running_usage_and_logprobs(engine: EngineProcess, http: aiohttp.ClientSession) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = CHAT | {"max_tokens": 3, "logprobs": True, "stream_options": options}
    _, *tokens, _, _ = await events(http, f"{engine.url}/v1/chat/completions", body)
    assert [event["usage"]["completion_tokens"] for event in tokens] == [1, 2, 3]
    assert all(event["choices"][0]["logprobs"]["content"][0]["token"] for event in tokens)


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("chat/completions", b'{"model": "m", "mess', 400, "Bad Request"),
        ("chat/completions", b'{"model": "m"}', 400, "Bad Request"),
        ("chat/completions", b'{"model": "x", "messages": [{"role": "user"}]}', 404, "NotFoundError"),
        ("chat/completions", b'{"messages": [{"role": "nobody"}]}', 400, "Bad Request"),
        ("completions", b'{"prompt": [999999]}', 400, "BadRequestError"),
        ("completions", b'{"prompt": "x", "max_tokens": 0}', 400, "BadRequestError"),
        ("completions", b'{"prompt": "x", "n": -1}', 400, "BadRequestError"),
        ("completions", b'{"prompt": "x", "n": 9223372036854775807}', 400, "BadRequestError"),
        ("completions", b'{"prompt": "x", "max_tokens": 99999999}', 400, "BadRequestError"),
        ("completions", b'{"prompt": "x", "stop": 3}', 400, "Bad Request"),
        ("completions", b'{"prompt": "x", "stream_options": [1]}', 400, "Bad Request"),
    ],
)
async def test_a_clients_mistake_is_told_in_openais_form(
    engine: EngineProcess, http: aiohttp.ClientSession, path: str, body: bytes, status: int, kind: str
) -> None:
    async with http.post(f"{engine.url}/v1/{path}", data=body) as response:
        error = (await response.json())["error"]
        assert response.status == error["code"] == status
        assert error["type"] == kind


async def test_what_it_does_not_know_is_echoed(engine: EngineProcess, http: aiohttp.ClientSession) -> None:
    headers = {"x-session-id": "s1", "authorization": "Bearer secret"}
    body = CHAT | {"max_tokens": 2, "favourite_colour": "blue"}
    async with http.post(f"{engine.url}/v1/chat/completions", json=body, headers=headers) as response:
        sim = (await response.json())["sim"]
    assert sim["unknown"] == {"favourite_colour": "blue"}
    assert sim["headers"]["x-session-id"] == "s1"
    assert "secret" not in json.dumps([sim, await engine.requests()])


async def test_a_key_is_asked_for(http: aiohttp.ClientSession) -> None:
    async with EngineProcess(api_key="k") as engine:
        for key, status in (("", 401), ("Bearer k", 200)):
            async with http.get(f"{engine.url}/v1/models", headers={"authorization": key}) as response:
                assert response.status == status
        async with http.get(f"{engine.url}/health") as response:
            assert response.status == 200


async def test_more_than_the_slots_wait_in_order(engine: EngineProcess, http: aiohttp.ClientSession) -> None:
    async def finished(number: int) -> int:
        await asyncio.sleep(number * 0.02)
        await events(http, f"{engine.url}/v1/chat/completions", CHAT)
        return number

    order = [await done for done in asyncio.as_completed([finished(number) for number in range(5)])]
    assert order == [0, 1, 2, 3, 4]
    stats = await engine.stats()
    assert stats["peak_running"] == 2
    assert stats["served"] == 5
    assert stats["tokens"] == 200
    assert stats["running"] == stats["waiting"] == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_slot_at_once(
    engine: EngineProcess, http: aiohttp.ClientSession, stream: bool
) -> None:
    body = CHAT | {"max_tokens": 4000, "stream": stream}
    asking = [
        asyncio.create_task(http.post(f"{engine.url}/v1/chat/completions", json=body)) for _ in range(3)
    ]

    async def is_full() -> bool:
        stats = await engine.stats()
        return bool(stats["running"] == 2 and stats["waiting"] == 1)

    await eventually(is_full)
    if stream:
        for response in await asyncio.gather(*asking):
            response.close()
    else:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def is_empty() -> bool:
        stats = await engine.stats()
        return bool(stats["running"] == stats["waiting"] == 0)

    await eventually(is_empty, within_s=0.5)
    assert (await engine.stats())["aborted"] == 3


async def test_steps_do_not_drift(engine: EngineProcess, http: aiohttp.ClientSession) -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await events(http, f"{engine.url}/v1/chat/completions", CHAT | {"max_tokens": 300})
    assert 299 * 0.005 <= loop.time() - begun < 300 * 0.005 * 1.15 + 0.1


async def test_a_known_prefix_needs_no_prefill(http: aiohttp.ClientSession) -> None:
    async with EngineProcess(prefill_tokens_per_s=2000, token_ms=1) as engine:
        loop = asyncio.get_running_loop()
        took: list[float] = []
        for _ in range(2):
            begun = loop.time()
            body = {"model": "m", "prompt": "x" * 1000, "max_tokens": 1}
            async with http.post(f"{engine.url}/v1/completions", json=body) as response:
                await response.read()
            took.append(loop.time() - begun)
        assert took[0] > 0.5 > 0.25 > took[1]
        assert (await engine.stats())["cached_tokens"] == 992


async def test_its_metrics_have_vllms_names(engine: EngineProcess, http: aiohttp.ClientSession) -> None:
    await events(http, f"{engine.url}/v1/chat/completions", CHAT)
    async with http.get(f"{engine.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    labels = '{engine="0",model_name="m"}'
    assert f"vllm:num_requests_running{labels} 0.0" in lines
    assert f"vllm:num_requests_waiting{labels} 0.0" in lines
    assert f"vllm:generation_tokens_total{labels} 40.0" in lines
    assert f"vllm:time_to_first_token_seconds_count{labels} 1" in lines
    assert f"vllm:inter_token_latency_seconds_count{labels} 39" in lines


async def test_tokens_can_come_merged(http: aiohttp.ClientSession) -> None:
    async with EngineProcess(token_ms=1, tokens_per_event=3) as engine:
        body = CHAT | {"return_token_ids": True}
        _, *tokens, _ = await events(http, f"{engine.url}/v1/chat/completions", body)
    sizes = [len(event["choices"][0]["token_ids"]) for event in tokens]
    assert sizes == [3] * 13 + [1]
    text = "".join(event["choices"][0]["delta"]["content"] for event in tokens)
    assert text == expected_answer(QUESTION, 40, ignore_eos=True).text


async def test_text_goes_to_ids_and_back(engine: EngineProcess, http: aiohttp.ClientSession) -> None:
    async with http.post(f"{engine.url}/tokenize", json={"prompt": "a 🙂"}) as response:
        tokens = (await response.json())["tokens"]
    async with http.post(f"{engine.url}/detokenize", json={"tokens": tokens}) as response:
        assert (await response.json())["prompt"] == "a 🙂"
    async with http.post(f"{engine.url}/tokenize", json={"messages": QUESTION}) as response:
        assert (await response.json())["tokens"] == prompt_ids(QUESTION)
