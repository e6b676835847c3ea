"""What tracing costs a gateway in CPU: with nothing sampled against no tracing at all, and with a request sampled against one
that is not.

`python -m loadtests.tracing_cost` asks one gateway for short whole answers and for streams, at 32 clients, in rounds of a few
dozen requests that last well below a second. What is compared lies side by side in a round, in an order by chance, in one
process, so that neither a machine that slows down nor where memory lies tells them apart; and one way is measured twice,
which says how much of the rest is noise. Nothing sampled is a change of the config. Sampled requests say so themselves, by
`traceparent`; of the threads beside the event loop, which turn them into spans, all CPU is theirs but what those threads
spend without tracing, too.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import aiohttp
import orjson
import uvloop

from loadtests.client_wire import ClientConnection, connect, post
from loadtests.fleet import MODEL, GatewayProcess, Plan, graceway_config
from loadtests.overhead import CLIENTS, SLOTS
from loadtests.paired import change_of
from loadtests.processes import READY_WITHIN_S, EngineProcess, ServerProcess

NONE, AGAIN, UNSAMPLED, SAMPLED = "no tracing", "no tracing, again", "0 % sampled", "100 % sampled"
STREAM_TOKENS = 50
LOADS = {"whole, 1 token": (1, False, 2), f"stream, {STREAM_TOKENS} tokens": (STREAM_TOKENS, True, 1)}
"""Tokens, whether streamed, and how often each client asks in a round."""
FLUSH_S = 1.5
"""After which the spans of all that was asked have been sent: the exporter looks once a second."""
IDLE_S = 3.0
"""For which it is looked at while nobody asks."""
_QUESTION = [{"role": "user", "content": "What does a gateway cost, in microseconds, per request?"}]
_CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0"
PATIENT = Plan(
    slots=SLOTS,
    slo="{ttft_s: 60.0, itl_s: 60.0}",
    more_tier="probe: null",
    more_config="health: {interval_s: 60.0, timeout_s: 30.0}\n",
)
"""Under which a busy machine makes no replica look ill."""

Round = dict[str, float]
"""CPU microseconds a request, by way."""


class CollectorProcess(ServerProcess):
    """`loadtests.collector`, which counts what comes."""

    def __init__(self) -> None:
        super().__init__(sys.executable, "-m", "loadtests.collector")


class Traced:
    """A gateway that is told how much to trace, and asked."""

    def __init__(self, gateway: GatewayProcess, path: Path, plain: str, tracing: str) -> None:
        self._gateway, self._path, self._plain, self._tracing = gateway, path, plain, tracing
        self._connections: list[ClientConnection] = []

    async def connect(self) -> None:
        """Once the first probe has found the replica: none is refused before."""
        async with asyncio.timeout(READY_WITHIN_S), aiohttp.ClientSession() as http:
            while not await _is_ready(http, self._gateway.url):  # noqa: ASYNC110 - another process's
                await asyncio.sleep(0.1)
        self._connections = [await connect(self._gateway.url) for _ in range(CLIENTS)]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    async def become(self, has_tracing: bool) -> None:
        """With tracing, nothing is sampled but what says so itself."""
        self._path.write_text(self._plain + (self._tracing if has_tracing else ""))
        async with aiohttp.ClientSession() as http, http.post(self._gateway.url + "/admin/reload") as answer:
            answer.raise_for_status()

    async def cost_us(self, load: str, context: str = "") -> float | None:
        """CPU of the event loop's thread for one request, in one round; None where the machine stood still so long that
        requests were refused.
        """
        tokens, is_stream, each = LOADS[load]
        request = request_of(self._gateway.url, tokens, is_stream, context)
        before_s = first_thread_s(self._gateway.pid)
        served = await asyncio.gather(*(_ask(c, request, each) for c in self._connections))
        spent_s = first_thread_s(self._gateway.pid) - before_s
        return spent_s / (each * len(self._connections)) * 1e6 if all(served) else None

    def beside_s(self) -> float:
        """CPU of all its other threads so far."""
        return cpu_s(self._gateway.pid) - first_thread_s(self._gateway.pid)


def request_of(url: str, tokens: int, is_stream: bool, context: str) -> bytes:
    body = {"model": MODEL, "messages": _QUESTION, "max_tokens": tokens, "ignore_eos": True}
    headers = {"traceparent": context} if context else {}
    return post(url, "/v1/chat/completions", orjson.dumps({**body, "stream": is_stream}), headers)


def cpu_s(pid: int) -> float:
    """User and system time of all threads of a process so far, in seconds, to the nanosecond.

    The clock's number is that of clock_getcpuclockid(3), which Python does not have.
    """
    return time.clock_gettime(~pid << 3 | 2)


def first_thread_s(pid: int) -> float:
    """The same of a process's first thread alone."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


async def _is_ready(http: aiohttp.ClientSession, url: str) -> bool:
    async with http.get(url + "/health/ready") as answer:
        return answer.status == 200


async def _ask(connection: ClientConnection, request: bytes, times: int) -> bool:
    """Whether all were answered."""
    is_served = True
    for _ in range(times):
        await connection.exchange(request, lambda data, now: None)
        is_served = is_served and connection.status == 200
    return is_served


async def run(seconds: float) -> list[str]:
    """The table, a line for each load and way."""
    async with AsyncExitStack() as stack:
        engine = EngineProcess(slots=SLOTS, token_ms=0, prefill_tokens_per_s=0, served_model=MODEL)
        await stack.enter_async_context(engine)
        collector = await stack.enter_async_context(CollectorProcess())
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "gateway.yaml"
        plain = graceway_config(PATIENT, [engine.url], None)
        path.write_text(plain)
        gateway = await stack.enter_async_context(GatewayProcess(path))
        tracing = f'\ntracing: {{url: "{collector.url}", ratio: 0}}\n'
        traced = Traced(gateway, path, plain, tracing)
        await traced.connect()
        stack.callback(traced.close)
        lines = []
        for load in LOADS:
            off = await rounds_off(traced, load, seconds / 4)
            lines += [_line(load, way, off, NONE) for way in (NONE, AGAIN, UNSAMPLED)]
            sampled, beside_us = await rounds_sampled(traced, load, seconds / 4)
            lines.append(_line(load, SAMPLED, with_threads(sampled, beside_us), UNSAMPLED))
        return lines


async def rounds_off(traced: Traced, load: str, seconds: float) -> list[Round]:
    """Without tracing, twice, and with it but nothing sampled."""

    async def cost_us(way: str) -> float | None:
        await traced.become(way == UNSAMPLED)
        return await traced.cost_us(load)

    return await _rounds([NONE, AGAIN, UNSAMPLED], cost_us, seconds)


async def rounds_sampled(traced: Traced, load: str, seconds: float) -> tuple[list[Round], float]:
    """A request that is not sampled, and one that is; and what the threads beside spent on each that is."""
    sampled = 0

    async def cost_us(way: str) -> float | None:
        nonlocal sampled
        sampled += LOADS[load][2] * CLIENTS if way == SAMPLED else 0
        return await traced.cost_us(load, _CONTEXT + ("1" if way == SAMPLED else "0"))

    idle = await _beside_idle(traced)
    await traced.become(True)
    await asyncio.sleep(FLUSH_S)
    began_at, beside_before_s = time.perf_counter(), traced.beside_s()
    rounds = await _rounds([UNSAMPLED, SAMPLED], cost_us, seconds)
    await asyncio.sleep(FLUSH_S)
    spent_s = traced.beside_s() - beside_before_s - idle * (time.perf_counter() - began_at)
    return rounds, spent_s / sampled * 1e6


async def _beside_idle(traced: Traced) -> float:
    """What share of a core the threads beside take without tracing, while nobody asks: they look for work all the time."""
    await traced.become(False)
    await asyncio.sleep(FLUSH_S)
    began_at, before_s = time.perf_counter(), traced.beside_s()
    await asyncio.sleep(IDLE_S)
    return (traced.beside_s() - before_s) / (time.perf_counter() - began_at)


async def _rounds(
    ways: list[str], cost_us: Callable[[str], Awaitable[float | None]], seconds: float
) -> list[Round]:
    """As many as there is time for, without the first, which warms up, and those in which anything was refused."""
    rng, until_s, rounds = Random(1), time.perf_counter() + seconds, []
    while time.perf_counter() < until_s:
        rng.shuffle(ways)
        found = {way: await cost_us(way) for way in ways}
        rounds.append({way: us for way, us in found.items() if us is not None})
    whole = [found for found in rounds[1:] if len(found) == len(ways)]
    if not whole:
        raise RuntimeError("there was no time for a round in which all was answered")
    return whole


def with_threads(rounds: list[Round], beside_us: float) -> list[Round]:
    """What is sampled costs what the threads beside spend on it, too."""
    return [{**found, SAMPLED: found[SAMPLED] + beside_us} for found in rounds]


def _line(load: str, way: str, rounds: list[Round], base: str) -> str:
    cpu_us = statistics.median(found[way] for found in rounds)
    more = "" if way == base else str(change_of((found[way], found[base]) for found in rounds))
    return f"{load:<20}{way:>19}{len(rounds):>8}{cpu_us:>8.0f}{more:>28}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.tracing_cost", description=__doc__)
    parser.add_argument("--seconds", type=float, default=240.0, help="of all rounds together")
    lines = uvloop.run(run(parser.parse_args().seconds))
    head = f"{'load':<20}{'traced':>19}{'rounds':>8}{'CPU µs':>8}{'more':>28}"
    sys.stdout.write("\n".join([head, *lines]) + "\n")


if __name__ == "__main__":
    main()
