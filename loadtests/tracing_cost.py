"""What tracing costs: gateways without it, with it but nothing sampled, and with every request sampled, in one run.

`python -m loadtests.tracing_cost` asks each in turn, round by round, for short whole answers and for streams, at 32
clients, and prints requests/s and the gateway's own CPU per request, its exporting thread included, against no tracing.
"""

import argparse
import statistics
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop

from loadtests.fleet import MODEL, GatewayProcess, Plan, graceway_config
from loadtests.overhead import CLIENTS, SLOTS, cpu_s, many_at_once, request_of
from loadtests.processes import EngineProcess, ServerProcess

RATIOS = {"none": None, "0 %": 0.0, "100 %": 1.0}
STREAM_TOKENS = 50
PATIENT = Plan(
    slots=SLOTS,
    slo="{ttft_s: 60.0, itl_s: 60.0}",
    more_tier="probe: null",
    more_config="health: {interval_s: 60.0, timeout_s: 30.0}\n",
)
"""Under which a busy machine makes no replica look ill."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One gateway under one load in one round."""

    requests_per_s: float
    cpu_us_per_request: float


class CollectorProcess(ServerProcess):
    """`loadtests.collector`, which counts what comes."""

    def __init__(self) -> None:
        super().__init__(sys.executable, "-m", "loadtests.collector")


async def measure(gateway: ServerProcess, tokens: int, *, stream: bool, seconds: float) -> Sample:
    before_s = cpu_s(gateway)
    request = request_of(gateway.url, tokens, stream=stream)
    answered, _, took_s = await many_at_once(gateway.url, request, CLIENTS, seconds)
    return Sample(answered / took_s, (cpu_s(gateway) - before_s) / answered * 1e6)


async def run(rounds: int, seconds: float) -> list[str]:
    """The table, a line for each load and ratio."""
    loads = {"whole, 1 token": (1, False), f"stream, {STREAM_TOKENS} tokens": (STREAM_TOKENS, True)}
    samples: dict[tuple[str, str], list[Sample]] = {(load, ratio): [] for load in loads for ratio in RATIOS}
    async with AsyncExitStack() as stack:
        engine = EngineProcess(slots=SLOTS, token_ms=0, prefill_tokens_per_s=0, served_model=MODEL)
        await stack.enter_async_context(engine)
        collector = await stack.enter_async_context(CollectorProcess())
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        gateways: dict[str, ServerProcess] = {}
        for name, ratio in RATIOS.items():
            config = home / f"{len(gateways)}.yaml"
            config.write_text(_config(engine, collector.url, ratio))
            gateways[name] = await stack.enter_async_context(GatewayProcess(config))
        for number in range(rounds + 1):
            for load, (tokens, stream) in loads.items():
                for name, gateway in gateways.items():
                    sample = await measure(gateway, tokens, stream=stream, seconds=seconds)
                    # The first round warms all of them up.
                    samples[load, name] += [sample] if number else []
    return [_line(load, name, found, samples[load, "none"]) for (load, name), found in samples.items()]


def _config(engine: EngineProcess, collector: str, ratio: float | None) -> str:
    config = graceway_config(PATIENT, [engine], None)
    return config if ratio is None else f'{config}\ntracing: {{url: "{collector}", ratio: {ratio}}}\n'


def _line(load: str, name: str, found: list[Sample], base: list[Sample]) -> str:
    def median(field: str) -> float:
        return statistics.median(float(getattr(sample, field)) for sample in found)

    def against(field: str) -> float:
        """The median over the rounds of what each is to the base of its own round."""
        pairs = zip(found, base, strict=True)
        return statistics.median(
            float(getattr(one, field)) / float(getattr(none, field)) - 1.0 for one, none in pairs
        )

    return (
        f"{load:<20}{name:>7}{median('requests_per_s'):>10.0f}{against('requests_per_s'):>+9.1%}"
        f"{median('cpu_us_per_request'):>10.0f}{against('cpu_us_per_request'):>+9.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.tracing_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load on each gateway")
    arguments = parser.parse_args()
    lines = uvloop.run(run(arguments.rounds, arguments.seconds))
    head = f"{'load':<20}{'traced':>7}{'req/s':>10}{'against':>9}{'CPU µs':>10}{'against':>9}"
    sys.stdout.write("\n".join([head, *lines]) + "\n")


if __name__ == "__main__":
    main()
