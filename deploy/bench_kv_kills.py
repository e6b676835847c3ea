"""What a client notices when the replica that has its conversation is killed: through a real gateway, which restores it.

Between two turns, and in the middle of an answer; beside it what the same costs where the replica lives, and where all
has to be computed anew.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from deploy.bench_kv_engines import Engine, Told, ask, random_prompt
from deploy.bench_kv_gateway import running_gateway, until_ready, until_restored
from deploy.bench_kv_rig import (
    ANSWER_TOKENS,
    BUDGET_BYTES,
    CONVERSATION_TOKENS,
    RECOMPUTE_RATIO,
    Bench,
    in_ms,
)
from replicas.engine_load import parse_load

SHORT_TOKENS, NEXT_TOKENS = 8, 16
PHASES = {
    "vllm:request_queue_time_seconds_sum": "before it was scheduled",
    "graceway_kv_load_seconds_total": "of which loading",
    "vllm:request_prefill_time_seconds_sum": "prefill",
    "vllm:time_to_first_token_seconds_sum": "to its first token",
}
"""Of a request at an engine, by the engine's own metrics."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A conversation that a replica holds, and the words in which its next turn is asked."""

    session: str
    history: list[int]
    asked: list[int]


async def between_turns(bench: Bench, conversations: int) -> None:
    """The next turn of conversations whose replica was killed meanwhile."""
    async with running_gateway(bench, BUDGET_BYTES) as gateway:
        victim, other = bench.engines
        held = [await _held_by(victim, bench, gateway) for _ in range(conversations)]
        warm = [await _next(bench, gateway, one, [*one.history, *bench.question()]) for one in held]
        await bench.until_saved()
        await victim.kill()
        restored = [await _next(bench, gateway, one, one.asked) for one in held]
        bench.claim(
            {told.replica for told in warm} == {_name(victim)}
            and {told.replica for told in restored} == {_name(other)},
            "served where the conversation was, and by the other replica once that was killed",
        )
        bench.claim(
            await until_restored(bench.http, gateway, _name(other), conversations),
            "the gateway's status tells that their blocks were loaded",
        )
        await victim.start()
        bench.forget_blocks()
        computed = [await ask(bench.http, victim.url, one.asked, NEXT_TOKENS) for one in held]
    for pair in zip(restored, computed, strict=True):
        bench.claim_same(pair)
    restored_s, warm_s, computed_s = (
        [told.ttft_s for told in several] for several in (restored, warm, computed)
    )
    bench.say(
        f"  next turn after 1,200 tokens: warm {in_ms(warm_s)}, restored {in_ms(restored_s)}, "
        f"computed {in_ms(computed_s)}; the first one, which found its replica dead: {restored_s[0] * 1000:.0f} ms"
    )
    bench.claim_as_warm(restored_s, warm_s)
    bench.claim_restored(restored_s, computed_s)


async def in_a_stream(bench: Bench, rounds: int) -> None:
    """The gap that a client sees when its replica dies, with its blocks in Redis and without."""
    gaps: dict[str, list[float]] = {"replicate": [], "recompute": []}
    async with running_gateway(bench, BUDGET_BYTES) as gateway:
        for number in range(rounds):
            for name in gaps:
                prompt = random_prompt(bench.rng, CONVERSATION_TOKENS)
                told, undisturbed = await _killed(bench, gateway, prompt, f"stream-{name}-{number}", name)
                gaps[name].append(told.longest_gap_s)
                bench.claim_same((told, undisturbed))
    ratio = min(gaps["replicate"]) / min(gaps["recompute"])
    bench.say(f"  gap: replicate {in_ms(gaps['replicate'])}, recompute {in_ms(gaps['recompute'])}")
    bench.claim(ratio <= RECOMPUTE_RATIO, f"the gap is at most a third of recomputing ({ratio:.2f})")


async def _held_by(engine: Engine, bench: Bench, gateway: str) -> _Held:
    """A conversation of 1,200 tokens on this engine: in a session that the gateway sent there by itself."""
    for number in count():
        session = f"between-{bench.rng.randrange(1 << 30)}-{number}"
        first = await _ask(bench, gateway, random_prompt(bench.rng, SHORT_TOKENS), 1, session)
        if first.replica == _name(engine):
            break
    prompt = random_prompt(bench.rng, CONVERSATION_TOKENS - ANSWER_TOKENS)
    history = [*prompt, *(await _ask(bench, gateway, prompt, ANSWER_TOKENS, session)).ids]
    return _Held(session, history, [*history, *bench.question()])


async def _next(bench: Bench, gateway: str, held: _Held, asked: list[int]) -> Told:
    return await _ask(bench, gateway, asked, NEXT_TOKENS, held.session)


async def _ask(bench: Bench, gateway: str, prompt: list[int], tokens: int, session: str) -> Told:
    return await ask(bench.http, gateway, prompt, tokens, model="chat", session=session)


async def _killed(
    bench: Bench, gateway: str, prompt: list[int], session: str, strategy: str
) -> tuple[Told, Told]:
    """A stream whose replica is killed in the middle of its answer; and the same undisturbed, on that replica afterwards."""
    has_begun = asyncio.Event()
    asking = asyncio.create_task(
        ask(bench.http, gateway, prompt, ANSWER_TOKENS, model="chat", session=session, begun=has_begun)
    )
    await has_begun.wait()
    victim = await _busy(bench)
    await bench.until_saved()
    if strategy == "recompute":
        bench.forget_blocks()
    other = next(engine for engine in bench.engines if engine is not victim)
    before = await phases(bench, other)
    await victim.kill()
    told = await asking
    after = await phases(bench, other)
    bench.say(
        f"  {strategy}: gap {told.longest_gap_s * 1e3:.0f} ms; at the other engine: {spent_in(before, after)}"
    )
    await victim.start()
    await until_ready(bench.http, gateway, len(bench.engines))
    return told, await ask(bench.http, victim.url, prompt, ANSWER_TOKENS)


async def phases(bench: Bench, engine: Engine) -> dict[str, float]:
    """Seconds that its requests have spent in each phase up to now."""
    found = await engine.metrics(bench.http)
    return {name: found[metric] for metric, name in PHASES.items()}


def spent_in(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """How long it was in each phase between the two."""
    return ", ".join(f"{name} {(after[name] - before[name]) * 1e3:.0f} ms" for name in after)


async def _busy(bench: Bench) -> Engine:
    """The engine that is answering."""
    for engine in bench.engines:
        async with bench.http.get(engine.url + "/metrics") as answer:
            load = parse_load(await answer.text(), 0.0)
        if load is not None and load.running:
            return engine
    raise RuntimeError("the answer was over before its replica was found")


def _name(engine: Engine) -> str:
    """As the gateway calls it."""
    return f"127.0.0.1:{engine.port}"
