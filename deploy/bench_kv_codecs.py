"""What each way to make KV blocks smaller is worth, on two real vLLM servers: bytes, time to restore, and what is said after.

One engine computes a prompt, the other restores it and goes on greedily. The prompts are random words; after a text that means
something, answers may change sooner.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from deploy.bench_kv_engines import ask, random_prompt
from deploy.bench_kv_rig import BUDGET_BYTES, Bench, in_ms, running_bench
from replicas.kv.settings import KvSettings
from state_store.kv.block_format import LOSSY, Codec

PROMPT_TOKENS, TOKENS = 700, 48


@dataclass(frozen=True, slots=True)
class Row:
    """One codec: bytes of a block in Redis, seconds to the first token restored, and per answer how many of its tokens came
    before the first that was another one than computed."""

    codec: Codec
    block_bytes: int
    restored: list[float]
    agreed: list[int]

    @property
    def same(self) -> int:
        """Answers that were the same to the end."""
        return self.agreed.count(TOKENS)

    @property
    def is_as_wanted(self) -> bool:
        return self.codec in LOSSY or self.same == len(self.agreed)

    @property
    def text(self) -> str:
        return (
            f"{self.codec:<5} {self.block_bytes / 1e3:6.0f} kB a block, restored {in_ms(self.restored)}, "
            f"{self.same} of {len(self.agreed)} answers the same to the last of {TOKENS} tokens, "
            f"{sum(self.agreed) / len(self.agreed):.1f} tokens on average"
        )


async def run(model: Path, codecs: Sequence[Codec], prompts: int, say: Callable[[str], None]) -> list[Row]:
    """Each codec on engines of its own: they share no blocks with those of another one that loses something."""
    rows = []
    for codec in codecs:
        async with running_bench(
            model, say, KvSettings("replicate", BUDGET_BYTES, compression=codec)
        ) as bench:
            rows.append(await _row(bench, codec, prompts))
        say(f"  {rows[-1].text}")
    return rows


async def _row(bench: Bench, codec: Codec, prompts: int) -> Row:
    one, other = bench.engines
    restored: list[float] = []
    agreed: list[int] = []
    for _ in range(prompts):
        prompt = random_prompt(bench.rng, PROMPT_TOKENS)
        computed = await ask(bench.http, one.url, prompt, TOKENS)
        await bench.until_saved()
        told = await ask(bench.http, other.url, prompt, TOKENS)
        restored.append(told.ttft_s)
        pairs = zip(computed.ids, told.ids, strict=True)
        agreed.append(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return Row(codec, bench.block_bytes(), restored, agreed)
