"""A replica that holds a conversation is killed, behind a real gateway: another one goes on, nearly as if it had always had it."""

from pathlib import Path

import pytest

from deploy.bench_kv_kills import between_turns, in_a_stream
from deploy.bench_kv_rig import running_bench

MODEL = Path(__file__).parents[2] / "models" / "smollm2-135m"


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(1500)
async def test_a_conversation_outlives_its_replica() -> None:
    said: list[str] = []
    async with running_bench(MODEL, said.append) as bench:
        await between_turns(bench, 2)
        await in_a_stream(bench, 1)
    assert len(bench.verdicts) >= 4
    # How near to warm a restored turn is depends on what else the machine does: that is for the bench to say.
    failed = [line for line in said if "FAILS" in line and "times warm" not in line]
    assert failed == [], "\n".join(said)
