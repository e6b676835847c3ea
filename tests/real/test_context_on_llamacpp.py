"""A conversation that is too long for a real llama.cpp's slot: its own tokenizer counts, the oldest turns are left out."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from gateway.breakers import Breaker
from gateway.replica import Place, Replica
from gateway.specs import BreakerSpec
from gateway.tokens import server_count
from loadtests.processes import ServerProcess
from replicas.model_tokens import ModelTokens
from tests.integration.client import Question, ask
from tests.integration.rig import serving, tier
from tests.rig import eventually, free_port

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
WINDOW = 512
MESSAGES = [
    {"role": "system", "content": "Answer in one word."},
    *[
        {"role": role, "content": f"{n}: a long story about a river, a bridge and 日本語 {n * 'word '}"}
        for n in range(20)
        for role in ("user", "assistant")
    ],
    {"role": "user", "content": "What colour is the sky?"},
]


@pytest.fixture
async def llamacpp() -> AsyncIterator[ServerProcess]:
    model = ROOT / "models" / "smollm2-135m-q4.gguf"
    command = [
        sys.executable,
        "-m",
        "replicas.llamacpp_server",
        "--model",
        str(model),
        "--served-model",
        "small",
    ]
    async with ServerProcess(*command, "--slots", "1", "--slot-tokens", str(WINDOW)) as server:
        yield server


async def test_its_own_tokenizer_counts(llamacpp: ServerProcess, tmp_path: Path) -> None:
    place = Place("r", llamacpp.url, "small")
    replica = Replica(place, Breaker("r", BreakerSpec(), Random(0)), lambda: None)
    try:
        counted = await server_count({"messages": MESSAGES}, replica)
        folder = ModelTokens(ROOT / "models" / "smollm2-135m")
        assert counted == folder.count({"messages": MESSAGES})
        assert await server_count({"prompt": "Rivers meet."}, replica) == folder.count(
            {"prompt": "Rivers meet."}
        )
    finally:
        replica.pool.close()


async def test_the_oldest_turns_are_left_out(llamacpp: ServerProcess, tmp_path: Path) -> None:
    patient = {"ttft_s": 100.0, "itl_s": 20.0}
    small = tier("small", llamacpp.url, max_model_len=WINDOW, gives_up={"context": True}, slo=patient)
    dead = tier("primary", f"http://127.0.0.1:{free_port()}")
    async with serving(tmp_path / "c.yaml", dead, small) as gateway:

        async def is_ready() -> bool:
            return (await gateway.replicas())[llamacpp.url]["state"] == "ready"

        await eventually(is_ready, 60.0)
        question = Question(stream=False, tokens=12).with_(messages=MESSAGES)
        answer = await ask(gateway.url, question)
        assert answer.status == 200, answer.raw
        assert answer.headers["x-given-up"].startswith("context=")
        usage = answer.json["usage"]
        assert WINDOW * 0.8 < usage["prompt_tokens"] + 12 <= WINDOW
