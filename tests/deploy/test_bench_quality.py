"""`graceway bench quality`: on servers whose answers and likelihoods are known, and once on real engines."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from math import log
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from deploy.bench_quality import measure, write
from deploy.config import load_config
from fallback_models.quality.interview import InterviewFailed
from fallback_models.quality.prompts import load_prompts
from tests.deploy.test_up import ROOT, System
from tests.rig import free_port

Json = dict[str, Any]
PROMPTS = load_prompts().first(6)
KNOWN = {item.prompt: item.answers[0] for item in PROMPTS.exact}


class Engine:
    """An OpenAI server that finds `likely` words as likely as 1/2 and others as 1/8, a word being a token.

    It knows `knows` of the right answers, and says its own `words` otherwise.
    """

    def __init__(self, words: str, knows: int, *, has_logprobs: bool = True, fails: bool = False) -> None:
        self.words, self.has_logprobs, self.fails = words, has_logprobs, fails
        self.known = dict(list(KNOWN.items())[:knows])

    async def chat(self, request: web.Request) -> web.Response:
        body: Json = await request.json()
        if self.fails:
            return web.json_response({"error": "no"}, status=500)
        asked = body["messages"][0]["content"].split()
        said = self.known.get(body["messages"][0]["content"], self.words)
        answer: Json = {"choices": [{"message": {"content": said}}], "usage": {"prompt_tokens": len(asked)}}
        if self.has_logprobs and "prompt_logprobs" in body:
            assert (body["add_generation_prompt"], body["continue_final_message"]) == (False, True)
            told = asked + body["messages"][-1]["content"].split()
            answer["prompt_logprobs"] = [
                None,
                *({"7": {"logprob": self._logprob(word)}} for word in told[1:]),
            ]
        return web.json_response(answer)

    @staticmethod
    def _logprob(word: str) -> float:
        return -log(2) if word == "likely" else -log(8)


@asynccontextmanager
async def serving(*engines: Engine) -> AsyncIterator[list[str]]:
    runners, urls = [], []
    try:
        for engine in engines:
            app = web.Application()
            app.router.add_post("/v1/chat/completions", engine.chat)
            runner = web.AppRunner(app)
            await runner.setup()
            runners.append(runner)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        yield urls
    finally:
        for runner in runners:
            await runner.cleanup()


def config(folder: Path, urls: list[str]) -> Path:
    path = folder / "c.yaml"
    tiers = [
        f"      - {{name: t{n}, backend: openai, served_model: m, replicas: [{{url: '{url}'}}]}}  # {n}"
        for n, url in enumerate(urls)
    ]
    path.write_text("\n".join(["models:", "  chat:", "    tiers:", *tiers, "      - {backend: canned}", ""]))
    return path


async def test_each_tier_is_worth_what_it_says_and_knows(tmp_path: Path) -> None:
    engines = Engine("likely " * 4, 6), Engine("likely odd likely odd", 3), Engine("", 6)
    async with serving(*engines) as urls:
        path = config(tmp_path, urls)
        measured = await measure("chat", load_config(path).models["chat"], PROMPTS, None, 10.0)
        best, small, silent, canned = measured
        assert best.scores is not None
        assert best.scores.perplexity == pytest.approx(2.0)
        assert small.scores is not None
        assert small.scores.perplexity == pytest.approx(4.0)
        assert [m.quality for m in measured] == [1.0, 0.5, 0.5, None]
        assert silent.scores is not None
        assert (silent.scores.answered, silent.scores.perplexity) == (0.0, None)
        assert "not a model's" in canned.line()
        write(path, "chat", measured, date(2030, 1, 2))
    tiers = load_config(path).models["chat"].tiers
    assert [(t.quality, t.quality_as_of) for t in tiers[:2]] == [(1.0, "2030-01-02"), (0.5, "2030-01-02")]
    assert "  # 1\n" in path.read_text()


async def test_without_likelihoods_right_answers_are_what_counts(tmp_path: Path) -> None:
    async with serving(Engine("x", 6, has_logprobs=False), Engine("x", 3)) as urls:
        measured = await measure("chat", load_config(config(tmp_path, urls)).models["chat"], PROMPTS, None, 9)
        assert [m.quality for m in measured] == [1.0, 0.5, None]


async def test_a_tier_that_is_gone_is_not_measured_and_a_best_one_ends_it(tmp_path: Path) -> None:
    well, ill = Engine("likely", 6), Engine("x", 0, fails=True)
    async with serving(well, ill) as urls:
        measured = await measure("chat", load_config(config(tmp_path, urls)).models["chat"], PROMPTS, None, 9)
        assert measured[1].quality is None
        assert "answers nothing" in measured[1].why
        ladder = load_config(config(tmp_path, urls[::-1])).models["chat"]
        with pytest.raises(InterviewFailed, match="answers nothing"):
            await measure("chat", ladder, PROMPTS, None, 9)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_real_engines(tmp_path: Path) -> None:
    """SmolLM2 on vLLM judges itself and its four-bit form on llama.cpp, and then each rung is drilled."""
    text, port = (ROOT / "deploy" / "local.yaml").read_text(), free_port()
    path = tmp_path / "local.yaml"
    path.write_text(text.replace("port: 8000", f"port: {port}"))
    with System(path, port) as system:
        system.wait_for(r"^ready", 420.0)

        async def graceway(*arguments: str) -> str:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "deploy", *arguments),
                cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            said = (await process.communicate())[0].decode()
            assert process.returncode == 0, said
            return said

        drilled = await graceway("drill", "tiers", "--url", system.url, "--probes", "1")
        assert "4 of 4 rungs hold" in drilled
        said = await graceway(
            "bench",
            "quality",
            "-c",
            str(path),
            "--url",
            system.url,
            "--items",
            os.environ.get("ITEMS", "6"),
            "--write",
        )
        sys.stdout.write(drilled + said)
        assert re.search(r"primary\s+perplexity \d", said)
        small = next(t for t in load_config(path).models["chat"].tiers if t.name == "small")
        assert 0.0 < small.quality <= 1.0
        assert small.quality_as_of
        assert json.dumps(path.read_text()).count("#") >= text.count("#") - 1
        system.process.terminate()
        await asyncio.to_thread(system.process.wait, 60)
