"""What tracing costs: one gateway, whose config is changed between short rounds to no tracing, none sampled, all sampled.

`python -m loadtests.tracing_cost` asks for short whole answers and for streams, at 32 clients, always the same number of
each, and prints the gateway's own CPU per request, its exporting thread included, and requests/s, each against the same
gateway without tracing in the same round. One process, so that no two differ by where their memory lies; in an order by
chance, so that no way always follows the same other; and none measured twice, which tells how much of the rest is noise.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import aiohttp
import uvloop

from loadtests.client_wire import ClientConnection, connect
from loadtests.fleet import MODEL, GatewayProcess, Plan, graceway_config
from loadtests.overhead import CLIENTS, SLOTS, request_of
from loadtests.paired import change_of
from loadtests.processes import READY_WITHIN_S, EngineProcess, ServerProcess

NONE, AGAIN = "none", "none again"
RATIOS = {NONE: None, AGAIN: None, "0 %": 0.0, "100 %": 1.0}
STREAM_TOKENS = 50
LOADS = {"whole, 1 token": (1, False, 16), f"stream, {STREAM_TOKENS} tokens": (STREAM_TOKENS, True, 6)}
"""Tokens, whether streamed, and how often each client asks in a round."""
FLUSH_S = 0.65
"""After which the spans of all that was asked have been sent: the exporter looks twice a second."""
PATIENT = Plan(
    slots=SLOTS,
    slo="{ttft_s: 60.0, itl_s: 60.0}",
    more_tier="probe: null",
    more_config="health: {interval_s: 60.0, timeout_s: 30.0}\n",
)
"""Under which a busy machine makes no replica look ill."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One way under one load in one round."""

    requests_per_s: float
    cpu_us_per_request: float


Round = dict[str, Sample]
"""By way."""


class CollectorProcess(ServerProcess):
    """`loadtests.collector`, which counts what comes."""

    def __init__(self) -> None:
        super().__init__(sys.executable, "-m", "loadtests.collector")


class Traced:
    """A gateway that is told how much to trace, and asked."""

    def __init__(self, gateway: GatewayProcess, configs: dict[str, str], path: Path) -> None:
        self._gateway, self._configs, self._path = gateway, configs, path
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

    async def become(self, way: str) -> None:
        self._path.write_text(self._configs[way])
        async with aiohttp.ClientSession() as http, http.post(self._gateway.url + "/admin/reload") as answer:
            answer.raise_for_status()

    async def measure(self, tokens: int, stream: bool, each: int) -> Sample:
        request = request_of(self._gateway.url, tokens, stream=stream)
        cpu_before_s, begun_s = cpu_s(self._gateway.pid), time.perf_counter()
        await asyncio.gather(*(_ask(c, request, each) for c in self._connections))
        took_s = time.perf_counter() - begun_s
        await asyncio.sleep(FLUSH_S)
        count = each * len(self._connections)
        return Sample(count / took_s, (cpu_s(self._gateway.pid) - cpu_before_s) / count * 1e6)


def cpu_s(pid: int) -> float:
    """User and system time of all threads of a process so far, in seconds, to the nanosecond.

    The clock's number is that of clock_getcpuclockid(3), which Python does not have.
    """
    return time.clock_gettime(~pid << 3 | 2)


async def _is_ready(http: aiohttp.ClientSession, url: str) -> bool:
    async with http.get(url + "/health/ready") as answer:
        return answer.status == 200


async def _ask(connection: ClientConnection, request: bytes, times: int) -> None:
    heard: list[bytes] = []
    for _ in range(times):
        await connection.exchange(request, lambda data, _: heard.append(data))
        if connection.status != 200:
            raise RuntimeError(f"status {connection.status} under load: {heard[-1].decode()}")


async def run(rounds: int) -> list[str]:
    """The table, a line for each load and way."""
    async with AsyncExitStack() as stack:
        engine = EngineProcess(slots=SLOTS, token_ms=0, prefill_tokens_per_s=0, served_model=MODEL)
        await stack.enter_async_context(engine)
        collector = await stack.enter_async_context(CollectorProcess())
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "gateway.yaml"
        configs = {way: _config(engine, collector.url, ratio) for way, ratio in RATIOS.items()}
        path.write_text(configs[NONE])
        gateway = await stack.enter_async_context(GatewayProcess(path))
        traced = Traced(gateway, configs, path)
        await traced.connect()
        stack.callback(traced.close)
        return [line for load in LOADS for line in _lines(load, await _rounds(traced, load, rounds))]


async def _rounds(traced: Traced, load: str, rounds: int) -> list[Round]:
    rng, found = Random(1), []
    # The first round warms up.
    for _ in range(rounds + 1):
        ways, samples = list(RATIOS), {}
        rng.shuffle(ways)
        for way in ways:
            await traced.become(way)
            samples[way] = await traced.measure(*LOADS[load])
        found.append(samples)
    return found[1:]


def _config(engine: EngineProcess, collector: str, ratio: float | None) -> str:
    config = graceway_config(PATIENT, [engine.url], None)
    return config if ratio is None else f'{config}\ntracing: {{url: "{collector}", ratio: {ratio}}}\n'


def _lines(load: str, rounds: list[Round]) -> list[str]:
    return [_line(load, way, rounds) for way in RATIOS]


def _line(load: str, way: str, rounds: list[Round]) -> str:
    cpu_us = statistics.median(samples[way].cpu_us_per_request for samples in rounds)
    requests_per_s = statistics.median(samples[way].requests_per_s for samples in rounds)
    if way == NONE:
        return f"{load:<20}{way:>11}{cpu_us:>8.0f}{'':>26}{requests_per_s:>8.0f}"
    more_cpu = change_of((s[way].cpu_us_per_request, _base(s, way).cpu_us_per_request) for s in rounds)
    more_requests = change_of((s[way].requests_per_s, _base(s, way).requests_per_s) for s in rounds)
    return f"{load:<20}{way:>11}{cpu_us:>8.0f}{more_cpu!s:>26}{requests_per_s:>8.0f}{more_requests!s:>26}"


def _base(samples: Round, way: str) -> Sample:
    """What it is compared with: both rounds without tracing, or for the second of them the first."""
    one, other = samples[NONE], samples[AGAIN]
    if way == AGAIN:
        return one
    return Sample(
        (one.requests_per_s + other.requests_per_s) / 2,
        (one.cpu_us_per_request + other.cpu_us_per_request) / 2,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.tracing_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    lines = uvloop.run(run(parser.parse_args().rounds))
    head = f"{'load':<20}{'traced':>11}{'CPU µs':>8}{'against none':>26}{'req/s':>8}{'against none':>26}"
    sys.stdout.write("\n".join([head, *lines]) + "\n")


if __name__ == "__main__":
    main()
