"""What a gateway costs: no gateway, Graceway and others in front of one engine, interleaved in one run.

`python -m loadtests.overhead` measures, per front: latency of one request at a time (p50, p99, and what that is
above no gateway), requests/s and streamed chunks/s at 32 clients, and the front's own CPU per request, per
streamed chunk of that flood, where many come in one read, and per chunk of 128 streams at 20 ms a token, where
each comes alone. Each figure is the median over rounds that take the fronts in turn, so that a machine that
slows down slows all of them; one request at a time, whose latencies move most with the machine, the fronts take turns
of a few requests, and what one adds is the median over turns.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path

import orjson
import psutil
import uvloop

from loadtests.client_wire import ClientConnection, connect, post
from loadtests.fleet import MODEL, GatewayProcess, Plan, graceway_config
from loadtests.peers import PEERS, PeerProcess
from loadtests.processes import EngineProcess, ServerProcess

CLIENTS = 32
STREAM_TOKENS = 200
PACED_CLIENTS = 128
PACED_TOKEN_S = 0.02
SLOTS = 256
TURN = 25
"""Requests, one at a time, before it is the next front's turn: some tens of milliseconds."""
_QUESTION = [{"role": "user", "content": "What does a gateway cost, in microseconds, per request?"}]


@dataclass(frozen=True, slots=True)
class Sample:
    """One front in one round."""

    p50_ms: float
    p99_ms: float
    requests_per_s: float
    chunks_per_s: float
    cpu_us_per_request: float
    cpu_us_per_chunk: float
    cpu_us_per_paced_chunk: float
    turns_p50_ms: tuple[float, ...]
    """Of each turn that the front had, one request at a time."""


FIGURES = [one.name for one in fields(Sample) if one.type is float]


@dataclass(frozen=True, slots=True)
class Cost:
    """One front's medians, and what it adds to no gateway in the same turn, or the same round."""

    front: str
    p50_ms: float
    p99_ms: float
    added_p50_ms: float
    added_p99_ms: float
    requests_per_s: float
    chunks_per_s: float
    cpu_us_per_request: float
    cpu_us_per_chunk: float
    cpu_us_per_paced_chunk: float
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The least and the most of each figure over the rounds."""

    def line(self) -> str:
        return (
            f"{self.front:<12}{self.p50_ms:>9.3f}{self.p99_ms:>9.3f}{self.added_p50_ms:>11.3f}"
            f"{self.added_p99_ms:>11.3f}{self.requests_per_s:>9.0f}{self.chunks_per_s:>10.0f}"
            f"{self.cpu_us_per_request:>10.0f}{self.cpu_us_per_chunk:>10.1f}"
            f"{self.cpu_us_per_paced_chunk:>10.1f}"
        )


_HEAD = (
    f"{'front':<12}{'p50 ms':>9}{'p99 ms':>9}{'added p50':>11}{'added p99':>11}{'req/s':>9}{'chunks/s':>10}"
    f"{'µs/req':>10}{'µs/chunk':>10}{'µs/paced':>10}"
)


def request_of(url: str, tokens: int, *, stream: bool) -> bytes:
    body = {"model": MODEL, "messages": _QUESTION, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    return post(url, "/v1/chat/completions", orjson.dumps(body))


class ChunkCount:
    """Counts streamed events without looking into them."""

    def __init__(self) -> None:
        self.chunks = 0

    def receive(self, data: bytes, now: float) -> None:
        self.chunks += data.count(b"data: ")


def cpu_s(process: ServerProcess) -> float:
    """User and system time of a process and its children so far, in seconds."""
    root = psutil.Process(process.pid)
    times = [one.cpu_times() for one in (root, *root.children(recursive=True))]
    return float(sum(time.user + time.system for time in times))


async def _exchange(connection: ClientConnection, request: bytes, count: ChunkCount) -> None:
    await connection.exchange(request, count.receive)
    if connection.status != 200:
        raise RuntimeError(f"status {connection.status} under load: {connection.headers}")


async def in_turns(
    urls: Mapping[str, str], requests: int, answer_tokens: int
) -> dict[str, list[list[float]]]:
    """Latencies in milliseconds by front: one list for each turn, one request at a time."""
    found: dict[str, list[list[float]]] = {front: [] for front in urls}
    for begin in range(0, requests, TURN):
        for front, url in urls.items():
            request = request_of(url, answer_tokens, stream=False)
            found[front].append(await one_at_a_time(url, request, min(TURN, requests - begin)))
    return found


async def one_at_a_time(url: str, request: bytes, requests: int) -> list[float]:
    """Latencies in milliseconds."""
    connection = await connect(url)
    count = ChunkCount()
    latencies: list[float] = []
    for _ in range(requests):
        begun_s = time.perf_counter()
        await _exchange(connection, request, count)
        latencies.append((time.perf_counter() - begun_s) * 1000)
    connection.close()
    return latencies


async def many_at_once(url: str, request: bytes, clients: int, duration_s: float) -> tuple[int, int, float]:
    """Requests and chunks that `clients` got, each asking once at least and until the end; and in what time."""
    count = ChunkCount()
    begun_s = time.perf_counter()
    asking = (_keep_asking(url, request, begun_s + duration_s, count) for _ in range(clients))
    done = await asyncio.gather(*asking)
    return sum(done), count.chunks, time.perf_counter() - begun_s


async def _keep_asking(url: str, request: bytes, until_s: float, count: ChunkCount) -> int:
    connection = await connect(url)
    done = 0
    while not done or time.perf_counter() < until_s:
        await _exchange(connection, request, count)
        done += 1
    connection.close()
    return done


@dataclass(frozen=True, slots=True)
class Target:
    """One front, twice: before an engine that goes as fast as it can, and before one that keeps a pace."""

    fast: ServerProcess
    paced: ServerProcess
    has_front: bool

    def cpu_s(self, process: ServerProcess) -> float:
        return cpu_s(process) if self.has_front else 0.0


async def measure(
    target: Target, turns_ms: list[list[float]], duration_s: float, answer_tokens: int = 1
) -> Sample:
    """One front, once, whose latencies one at a time have been measured."""
    url = target.fast.url
    request = request_of(url, answer_tokens, stream=False)
    latencies = sorted(latency for turn in turns_ms for latency in turn)
    before = target.cpu_s(target.fast)
    answered, _, took_s = await many_at_once(url, request, CLIENTS, duration_s)
    between = target.cpu_s(target.fast)
    stream = request_of(url, STREAM_TOKENS, stream=True)
    streams, chunks, streamed_s = await many_at_once(url, stream, CLIENTS, duration_s)
    per_request_s = (between - before) / answered
    flood_s = target.cpu_s(target.fast) - between - streams * per_request_s
    return Sample(
        p50_ms=latencies[len(latencies) // 2],
        p99_ms=latencies[len(latencies) * 99 // 100],
        requests_per_s=answered / took_s,
        chunks_per_s=chunks / streamed_s,
        cpu_us_per_request=per_request_s * 1e6,
        cpu_us_per_chunk=flood_s / chunks * 1e6,
        cpu_us_per_paced_chunk=await paced_chunk_us(target, duration_s, per_request_s),
        turns_p50_ms=tuple(statistics.median(turn) for turn in turns_ms),
    )


async def paced_chunk_us(target: Target, duration_s: float, per_request_s: float) -> float:
    """CPU microseconds per chunk when each comes alone, as a model's tokens do, and not many in one read."""
    before = target.cpu_s(target.paced)
    request = request_of(target.paced.url, int(duration_s / PACED_TOKEN_S), stream=True)
    streams, chunks, _ = await many_at_once(target.paced.url, request, PACED_CLIENTS, 0.0)
    return (target.cpu_s(target.paced) - before - streams * per_request_s) / chunks * 1e6


async def run_rounds(
    fronts: Sequence[str], rounds: int, requests: int, duration_s: float, answer_tokens: int = 1
) -> list[Cost]:
    """All fronts on the same engines, round by round."""
    async with AsyncExitStack() as stack:
        # Slots for all clients, so that what is measured is never a queue.
        fast = await stack.enter_async_context(_engine(0))
        paced = await stack.enter_async_context(_engine(PACED_TOKEN_S * 1000))
        targets = {front: await _target(front, fast, paced, stack) for front in fronts}
        samples: dict[str, list[Sample]] = {front: [] for front in fronts}
        for number in range(rounds + 1):
            taking_part = {
                front: target
                for front, target in targets.items()
                if number < 2 or front not in PEERS or not PEERS[front].is_slow
            }
            urls = {front: target.fast.url for front, target in taking_part.items()}
            turns_ms = await in_turns(urls, requests if number else TURN, answer_tokens)
            for front, target in taking_part.items():
                sample = await measure(target, turns_ms[front], duration_s if number else 0.3, answer_tokens)
                # The first round warms all of them up.
                samples[front] += [sample] if number else []
    return [_cost(front, samples[front], samples[fronts[0]]) for front in fronts]


def _engine(token_ms: float) -> EngineProcess:
    return EngineProcess(slots=SLOTS, token_ms=token_ms, prefill_tokens_per_s=0, served_model=MODEL)


async def _target(front: str, fast: EngineProcess, paced: EngineProcess, stack: AsyncExitStack) -> Target:
    if front == "none":
        return Target(fast, paced, has_front=False)
    return Target(await _start(front, fast, stack), await _start(front, paced, stack), has_front=True)


async def _start(front: str, engine: EngineProcess, stack: AsyncExitStack) -> ServerProcess:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    if front in PEERS:
        return await stack.enter_async_context(PeerProcess(PEERS[front], MODEL, [engine.url], folder))
    config = folder / "overhead.yaml"
    config.write_text(graceway_config(Plan(slots=SLOTS), [engine.url], None))
    return await stack.enter_async_context(GatewayProcess(config))


def _cost(front: str, samples: list[Sample], bare: list[Sample]) -> Cost:
    def median(name: str) -> float:
        return statistics.median(float(getattr(sample, name)) for sample in samples)

    # A front that is too slow to be in all rounds is in the first of them.
    pairs = list(zip(samples, bare, strict=False))
    turns = [turn for one, none in pairs for turn in zip(one.turns_p50_ms, none.turns_p50_ms, strict=True)]
    return Cost(
        front=front,
        p50_ms=median("p50_ms"),
        p99_ms=median("p99_ms"),
        added_p50_ms=statistics.median(one - none for one, none in turns),
        added_p99_ms=statistics.median(one.p99_ms - none.p99_ms for one, none in pairs),
        requests_per_s=median("requests_per_s"),
        chunks_per_s=median("chunks_per_s"),
        cpu_us_per_request=median("cpu_us_per_request"),
        cpu_us_per_chunk=median("cpu_us_per_chunk"),
        cpu_us_per_paced_chunk=median("cpu_us_per_paced_chunk"),
        ranges={name: _range(samples, name) for name in FIGURES},
    )


def _range(samples: list[Sample], name: str) -> tuple[float, float]:
    values = [float(getattr(sample, name)) for sample in samples]
    return min(values), max(values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.overhead", description=__doc__)
    parser.add_argument(
        "--fronts",
        default="none,graceway,vllm-router",
        help=f"the first is the base; of none, graceway, {', '.join(PEERS)}",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=400, help="one at a time, in each round")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load at 32 clients")
    parser.add_argument(
        "--answer-tokens",
        type=int,
        default=1,
        help="of the whole answers that requests are measured by; a chunk's CPU is right for 1 alone",
    )
    parser.add_argument("--json", type=Path, help="writes the results there, too")
    return parser


def main() -> None:
    arguments = _parser().parse_args()
    fronts = arguments.fronts.split(",")
    costs = uvloop.run(
        run_rounds(fronts, arguments.rounds, arguments.requests, arguments.seconds, arguments.answer_tokens)
    )
    sys.stdout.write("\n".join([_HEAD, *(cost.line() for cost in costs)]) + "\n")
    if arguments.json:
        arguments.json.write_bytes(orjson.dumps(costs, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
