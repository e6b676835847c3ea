"""Forces each rung of each ladder in turn, and says whether it serves as it promises: `graceway drill tiers`.

A tier that has never served is a hope. This pins a running gateway to one tier after the other, sends a few probes
through, and checks that the tier itself answered, whole, within its own SLO, and that the answers say so. What came of it
is left with the gateway, which shows tiers that were never exercised as unproven. While a tier is pinned, everybody's
requests go to it: choose a quiet hour. The pins are taken back however this ends, and expire by themselves.

Exit status: 0 all passed, 1 some failed, 2 it could not be tried.
"""

import argparse
import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import aiohttp
import orjson

from loadtests.ending import run_to_end

Json = dict[str, Any]
EXIT_FAILED, EXIT_REFUSED = 1, 2
IN_FORCE_WITHIN_S = 5.0
PEERS_HEED_S = 1.5
"""How long other gateways of the store may take to hear of a pin."""
QUESTIONS = (
    "Name three rivers.",
    "What is two plus two?",
    "Say hello in one sentence.",
    "Which colour has the sky at noon?",
)


class TiersNotDrilledError(Exception):
    """It could not be tried at all, and why."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One tier as the gateway describes it. `place` 0 is the best."""

    model: str
    tier: str
    place: int
    ttft_slo_s: float
    itl_slo_s: float


@dataclass(frozen=True, slots=True)
class Probe:
    """What one probe met."""

    status: int
    tier: str = ""
    degraded: str | None = None
    ttft_s: float | None = None
    gap_s: float = 0.0
    """The median time between two pieces of the answer."""
    is_whole: bool = False
    complaint: str = ""


@dataclass(frozen=True, slots=True)
class RungVerdict:
    """`faults` is empty where the rung holds."""

    rung: Rung
    faults: tuple[str, ...]
    ttft_s: float | None

    @property
    def passed(self) -> bool:
        return not self.faults

    def text(self) -> str:
        name = f"{self.rung.model}/{self.rung.tier}"
        seen = "" if self.ttft_s is None else f"first token in {self.ttft_s:.2f} s at most"
        if self.passed:
            return f"{name:<32} passed  {seen} (promised {self.rung.ttft_slo_s:g} s)"
        return f"{name:<32} FAILED  {'; '.join(self.faults)}"


def verdict_on(rung: Rung, probes: Sequence[Probe]) -> RungVerdict:
    """Whether the rung itself answered, whole, in time, and said so."""
    faults = dict.fromkeys(fault for probe in probes for fault in _faults(rung, probe))
    times = [probe.ttft_s for probe in probes if probe.ttft_s is not None]
    return RungVerdict(rung, tuple(faults) if probes else ("nothing was asked",), max(times, default=None))


def _faults(rung: Rung, probe: Probe) -> list[str]:
    if probe.complaint:
        return [probe.complaint]
    if probe.status != 200:
        return [f"refused with {probe.status}"]
    if probe.tier != rung.tier:
        return [f"{probe.tier or 'nobody'} answered instead"]
    faults = [] if probe.is_whole else ["an answer was not whole"]
    if rung.place == 0 and probe.degraded is not None:
        faults.append(f"the best tier's answer says it is degraded ({probe.degraded})")
    if rung.place > 0 and not probe.degraded:
        faults.append("the answer does not say that it is a lower tier's")
    if probe.ttft_s is not None and probe.ttft_s > rung.ttft_slo_s:
        faults.append(f"a first token came later than the {rung.ttft_slo_s:g} s it promises")
    if probe.gap_s > rung.itl_slo_s:
        faults.append(f"tokens came slower than one each {rung.itl_slo_s:g} s")
    return faults


@dataclass(slots=True)
class Gateway:
    """A running gateway, as its administrator and as a client."""

    http: aiohttp.ClientSession
    url: str
    admin: dict[str, str]
    client: dict[str, str]

    async def status(self) -> Json:
        async with self.http.get(f"{self.url}/status", headers=self.admin) as response:
            if response.status != 200:
                raise _not_let(response.status, f"{self.url}/status")
            status: Json = await response.json()
            return status

    async def admin_post(self, path: str, body: Json) -> None:
        async with self.http.post(self.url + path, json=body, headers=self.admin) as response:
            if response.status != 200:
                raise _not_let(response.status, path, (await response.text())[:200])

    async def ask(self, model: str, question: str, tokens: int) -> Probe:
        """One streamed chat."""
        body = {
            "model": model, "messages": [{"role": "user", "content": question}],
            "max_tokens": tokens, "temperature": 0, "stream": True,
        }  # fmt: skip
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        try:
            async with self.http.post(
                f"{self.url}/v1/chat/completions", json=body, headers=self.client
            ) as response:
                times, is_done, is_broken = await _read(response)
                headers = response.headers
                return Probe(
                    response.status,
                    headers.get("x-served-tier", ""),
                    headers.get("x-degraded"),
                    times[0] - asked_at if times else None,
                    median(b - a for a, b in pairwise(times)) if len(times) > 1 else 0.0,
                    is_whole=is_done and not is_broken and bool(times),
                )
        except (aiohttp.ClientError, TimeoutError) as error:
            return Probe(0, complaint=f"no answer ({type(error).__name__})")


def _not_let(status: int, path: str, body: str = "") -> TiersNotDrilledError:
    """Why an administrator's request was answered otherwise."""
    if status in (401, 403):
        return TiersNotDrilledError(
            f"the gateway wants its admin key for {path}: --admin-key KEY, or GRACEWAY_ADMIN_KEY in the environment"
        )
    return TiersNotDrilledError(f"{path} answered {status}" + (f": {body}" if body else ""))


async def _read(response: aiohttp.ClientResponse) -> tuple[list[float], bool, bool]:
    """When pieces of text came, whether `[DONE]` did, and whether an error event did."""
    times: list[float] = []
    is_done = is_broken = False
    async for line in response.content:
        if not line.startswith(b"data: "):
            continue
        payload = line[6:].strip()
        if payload == b"[DONE]":
            is_done = True
            continue
        event = orjson.loads(payload)
        is_broken = is_broken or "error" in event
        if any((choice.get("delta") or {}).get("content") for choice in event.get("choices") or ()):
            times.append(asyncio.get_running_loop().time())
    return times, is_done, is_broken


def rungs_of(status: Json, only_model: str | None, only_tier: str | None) -> list[Rung]:
    """The rungs to drill, the best of each model first.

    Raises:
        TiersNotDrilledError: an operator holds a tier now, or there is no such rung.
    """
    rungs = []
    for model, told in status["models"].items():
        if only_model not in (None, model):
            continue
        held = [t["name"] for t in told["tiers"] if t.get("held_because") in ("pinned", "override")]
        if held:
            raise TiersNotDrilledError(
                f"an operator's word on {model}/{held[0]} is in force: end it first (POST /admin/pin)"
            )
        rungs += [
            Rung(model, t["name"], place, t["slo_ttft_s"], t["slo_itl_s"])
            for place, t in enumerate(told["tiers"])
            if only_tier in (None, t["name"])
        ]
    if not rungs:
        raise TiersNotDrilledError("there is no such model or tier")
    return rungs


@asynccontextmanager
async def pinned(gateway: Gateway, rung: Rung, for_s: float) -> AsyncIterator[None]:
    """The model is served by this tier and those below, until the end; a cancelled drill, too, takes its pin back."""
    may_hold = True
    try:
        try:
            await gateway.admin_post("/admin/pin", {"model": rung.model, "tier": rung.tier, "for_s": for_s})
        except TiersNotDrilledError:
            may_hold = False
            raise
        await _until_in_force(gateway, rung)
        yield
    finally:
        if may_hold:
            await asyncio.shield(_released(gateway, rung.model))


async def _released(gateway: Gateway, model: str) -> None:
    try:
        await gateway.admin_post("/admin/pin", {"model": model})
    except (aiohttp.ClientError, TimeoutError, TiersNotDrilledError) as error:
        say(f"the pin on {model} could not be taken back ({error}); it expires by itself")


async def _until_in_force(gateway: Gateway, rung: Rung) -> None:
    async with asyncio.timeout(IN_FORCE_WITHIN_S):
        while True:
            told = (await gateway.status())["models"][rung.model]
            if all(t["allotted"] == 0.0 for t in told["tiers"][: rung.place]):
                break
            await asyncio.sleep(0.05)
    if told.get("ladder_peers"):
        await asyncio.sleep(PEERS_HEED_S)


async def drill(
    gateway: Gateway, rung: Rung, questions: Sequence[str], tokens: int, for_s: float
) -> RungVerdict:
    """Pins the rung, asks, and leaves the verdict with the gateway."""
    try:
        async with pinned(gateway, rung, for_s):
            probes = [await gateway.ask(rung.model, question, tokens) for question in questions]
    except TimeoutError:
        probes = [Probe(0, complaint="the pin did not come into force")]
    if any(probe.status in (401, 403) for probe in probes):
        # Says nothing about the rung.
        raise TiersNotDrilledError(
            f"the gateway wants a caller's key that may ask for {rung.model}: --key KEY, or GRACEWAY_KEY in the environment"
        )
    verdict = verdict_on(rung, probes)
    told = {"model": rung.model, "tier": rung.tier, "passed": verdict.passed}
    await gateway.admin_post("/admin/exercised", {**told, "detail": "; ".join(verdict.faults)[:300]})
    return verdict


async def run(arguments: argparse.Namespace) -> int:
    """Every rung, one after the other; the exit status."""
    timeout = aiohttp.ClientTimeout(total=arguments.patience_s)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        gateway = Gateway(
            http, arguments.url.rstrip("/"), _bearer(arguments.admin_key), _bearer(arguments.key)
        )
        try:
            rungs = rungs_of(await gateway.status(), arguments.model, arguments.tier)
            # New ones each time, so that a cache shows what this drill's own upper rungs have left in it.
            mark = uuid.uuid4().hex[:8]
            questions = [f"[{mark}] {question}" for question in QUESTIONS[: arguments.probes]]
            verdicts = []
            for rung in rungs:
                verdicts.append(await drill(gateway, rung, questions, arguments.tokens, arguments.for_s))
                say(verdicts[-1].text())
        except aiohttp.ClientConnectorError as error:
            sys.stderr.write(f"no gateway answers at {gateway.url} ({error.os_error}). Name one with --url\n")
            return EXIT_REFUSED
        except (aiohttp.ClientError, TiersNotDrilledError) as error:
            sys.stderr.write(f"{error or type(error).__name__}\n")
            return EXIT_REFUSED
    failed = sum(not verdict.passed for verdict in verdicts)
    say(f"{len(verdicts) - failed} of {len(verdicts)} rungs hold")
    return EXIT_FAILED if failed else 0


def _bearer(key: str | None) -> dict[str, str]:
    return {} if not key else {"authorization": f"Bearer {key}"}


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="graceway drill tiers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the running gateway")
    parser.add_argument("--model", help="one model's ladder; all without")
    parser.add_argument("--tier", help="one rung; all without")
    parser.add_argument(
        "--probes", type=int, choices=range(1, len(QUESTIONS) + 1), default=3, help="requests a rung"
    )
    parser.add_argument("--tokens", type=int, default=12, help="of an answer, at most")
    parser.add_argument(
        "--for-s", type=float, default=120.0, help="after which a pin expires, should this die"
    )
    parser.add_argument("--patience-s", type=float, default=60.0, help="with one request")
    parser.add_argument("--key", default=os.environ.get("GRACEWAY_KEY"), help="a client's; $GRACEWAY_KEY")
    parser.add_argument(
        "--admin-key", default=os.environ.get("GRACEWAY_ADMIN_KEY"), help="$GRACEWAY_ADMIN_KEY"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    return run_to_end(run(_parser().parse_args(arguments)))
