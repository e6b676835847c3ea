"""Drills: each passes with the protection that it tests, and fails without it; and what they say is right."""

import asyncio
import json
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.client import Question, Record
from loadtests.drill import run_shipped
from loadtests.drill_checks import (
    STORE_AVAILABLE,
    in_time,
    no_failure_beyond,
    no_wrong_answer_after,
    store_available_after,
    used_again_after,
    whole,
)
from loadtests.drill_observed import Observed, Outcome, Scrape, parse_metrics
from loadtests.drill_plan import Check, Drill, Mix, Setup
from loadtests.drill_verdict import verdict_on
from loadtests.drills import all_drills
from loadtests.judgement import Judgement
from loadtests.processes import ROOT
from tests.rig import EngineProcess, eventually

DRILLS = all_drills()
WHOLE = Judgement("whole")


def short(drill: Drill) -> Drill:
    return replace(drill, fault_s=1.5, heal_s=3.5, duration_s=5.0)


async def test_a_quick_drill_fails_without_the_protection(tmp_path: Path) -> None:
    verdict = await run_shipped(short(DRILLS["replica-erroring"]), 1, tmp_path, protected=False)
    assert verdict.word == "failed", verdict.text()
    (evidence,) = tmp_path.iterdir()
    assert (evidence / "verdict.txt").read_text() == verdict.text() + "\n"
    assert json.loads((evidence / "experiment-requests.json").read_bytes())


async def test_a_quick_drill_passes_with_the_protection(tmp_path: Path) -> None:
    verdict = await run_shipped(short(DRILLS["replica-erroring"]), 1, tmp_path)
    assert verdict.word == "passed", verdict.text()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", DRILLS)
async def test_every_drill_passes_with_the_protection(name: str, tmp_path: Path) -> None:
    verdict = await run_shipped(DRILLS[name], 1, tmp_path)
    assert verdict.word == "passed", verdict.text()


@pytest.mark.slow
@pytest.mark.parametrize("name", DRILLS)
async def test_every_drill_fails_without_the_protection(name: str, tmp_path: Path) -> None:
    verdict = await run_shipped(DRILLS[name], 1, tmp_path, protected=False)
    assert verdict.word == "failed", verdict.text()


@pytest.fixture
async def engine() -> AsyncIterator[EngineProcess]:
    async with EngineProcess(slots=32, token_ms=5) as process:
        yield process


async def drilled(*arguments: str, then: int | None = None) -> tuple[int, str]:
    """The program's exit status and output; `then` is a signal that it gets once the fault's marker is there."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtests.drill", *arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    if then is not None:
        marker = Path(arguments[arguments.index("--fault-command") + 1].split()[-1])

        async def is_marked() -> bool:
            return marker.exists()

        await eventually(is_marked, 30.0)
        process.send_signal(then)
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


def switches(engine: EngineProcess, kind: str) -> str:
    """A shell command that gives the engine a fault."""
    post = f"urlopen('{engine.url}/sim/fault', data=b'{{\"kind\": \"{kind}\"}}')"
    return shlex.join([sys.executable, "-c", f"from urllib.request import urlopen; {post}"])


@pytest.mark.slow
async def test_on_a_system_of_ones_own_the_time_before_the_fault_is_the_control(
    engine: EngineProcess, tmp_path: Path
) -> None:
    times = ("--fault-s", "1.5", "--heal-s", "3", "--duration-s", "4", "--rate", "10")
    healed = tmp_path / "healed"
    status, said = await drilled(
        *("replica-erroring", "--url", engine.url, "--evidence", str(tmp_path / "evidence"), *times),
        *("--fault-command", switches(engine, "error"), "--heal-command", f"touch {healed}"),
    )
    assert status == 1, said
    assert "replica-erroring: failed (answers whole" in said
    assert healed.exists()
    status, said = await drilled(
        *("replica-killed", "--url", engine.url, "--evidence", str(tmp_path / "evidence"), *times),
        *("--fault-command", switches(engine, "error")),
    )
    assert status == 3, said
    await engine.fault("none")
    status, said = await drilled(
        *("replica-killed", "--url", engine.url, "--fault-command", "true", "--verify", "tokens", *times)
    )
    assert status == 0, said


async def test_a_drill_that_is_ended_heals_what_it_broke(engine: EngineProcess, tmp_path: Path) -> None:
    broken, healed = tmp_path / "broken", tmp_path / "healed"
    status, said = await drilled(
        *("replica-killed", "--url", engine.url, "--fault-s", "1", "--heal-s", "60", "--duration-s", "61"),
        *("--fault-command", f"touch {broken}", "--heal-command", f"touch {healed}"),
        then=signal.SIGTERM,
    )
    assert status == 130, said
    assert healed.exists()


async def test_a_command_that_fails_is_told(engine: EngineProcess) -> None:
    arguments = (
        "replica-killed",
        "--url",
        engine.url,
        "--fault-s",
        "0.5",
        "--heal-s",
        "1",
        "--duration-s",
        "2",
    )
    status, said = await drilled(*arguments, "--fault-command", "false")
    assert status == 2
    assert "`false` ended with status 1" in said


async def test_a_drill_that_goes_too_far_is_aborted_and_healed(engine: EngineProcess, tmp_path: Path) -> None:
    healed = tmp_path / "healed"
    times = ("--fault-s", "2", "--heal-s", "50", "--duration-s", "60", "--rate", "20")
    async with asyncio.timeout(40):
        status, said = await drilled(
            *("replica-killed", "--url", engine.url, "--evidence", str(tmp_path / "evidence"), *times),
            *("--fault-command", switches(engine, "error"), "--heal-command", f"touch {healed}"),
        )
    assert status == 1, said
    assert "aborted" in said
    assert healed.exists()


def outcome(
    due_s: float, judgement: Judgement = WHOLE, front: str = "a", took_s: float = 1.0, replica: str = ""
) -> Outcome:
    question = Question(({"role": "user", "content": "x"},), 3)
    record = Record(due_s, question, due_s, due_s + took_s, [due_s + 0.1], status=200)
    record.headers = {"x-served-replica": replica}
    return Outcome(record, judgement, front, due_s, due_s + took_s)


def seen(*outcomes: Outcome, notes: tuple[str, ...] = (), scrapes: tuple[Scrape, ...] = ()) -> Observed:
    return Observed(outcomes, scrapes, 5.0, 10.0, ("http://r1", "http://r2"), ("a", "b"), 0.0, notes)


CUT = Judgement("failed", "cut")
DRILL = Drill("d", "", "", Setup(), Setup(), (whole(1.0), in_time(0.5)))


@pytest.mark.parametrize(
    ("control", "experiment", "word"),
    [
        (seen(outcome(1)), seen(outcome(1)), "passed"),
        (seen(outcome(1)), seen(outcome(1), outcome(2, CUT)), "failed"),
        (seen(outcome(1, CUT)), seen(outcome(1)), "inconclusive"),
        (seen(outcome(1, CUT)), seen(outcome(1, CUT)), "inconclusive"),
        (seen(), seen(outcome(1)), "inconclusive"),
        (seen(outcome(1)), seen(outcome(1), notes=("aborted",)), "failed"),
    ],
)
def test_verdicts(control: Observed, experiment: Observed, word: str) -> None:
    assert verdict_on(DRILL, control, experiment).word == word


def test_a_check_of_the_fault_itself_is_not_made_of_the_control() -> None:
    drill = replace(DRILL, checks=(Check("shows", lambda s: float(len(s.outcomes)), least=2, steady=False),))
    assert verdict_on(drill, seen(outcome(1)), seen(outcome(1), outcome(2))).word == "passed"
    assert verdict_on(drill, seen(outcome(1)), seen(outcome(1))).word == "failed"


def test_what_cannot_be_seen_decides_nothing() -> None:
    drill = replace(DRILL, checks=(Check("unseen", lambda _: None, least=2),))
    verdict = verdict_on(drill, seen(outcome(1)), seen(outcome(1)))
    assert verdict.word == "passed"
    assert "not seen" in verdict.text()


def test_only_what_was_under_way_on_the_dead_gateway_may_fail() -> None:
    check = no_failure_beyond()
    assert check.measure(seen(outcome(4.5, CUT, "a"), outcome(6, WHOLE, "b"))) == 0
    assert check.measure(seen(outcome(4.5, CUT, "b"))) == 1
    assert check.measure(seen(outcome(6, CUT, "a"))) == 1
    assert check.measure(seen(outcome(2, CUT, "a"))) == 1


def test_wrong_answers_count_from_the_time_on() -> None:
    wrong = Judgement("failed", "divergent")
    assert no_wrong_answer_after(4.0).measure(seen(outcome(8, wrong), outcome(9.5))) == 0
    assert no_wrong_answer_after(4.0).measure(seen(outcome(9.5, wrong))) == 1


def test_a_store_that_comes_and_goes_is_there_for_a_share_of_the_time() -> None:
    def at(at_s: float, value: float) -> Scrape:
        return Scrape(at_s, {STORE_AVAILABLE: value})

    check = store_available_after(2.0, 0.5)
    watched = (at(6.0, 0.0), at(7.5, 1.0), Scrape(8.0, None), at(8.5, 0.0), at(9.0, 1.0), at(9.5, 1.0))
    assert check.measure(seen(scrapes=watched)) == 0.75
    assert check.measure(seen(scrapes=watched[:1])) is None


def test_a_replica_is_used_again_when_every_gateway_uses_it() -> None:
    check = used_again_after(1.0, least=1)
    late = [outcome(11.5, front="a", replica="r1"), outcome(12.0, front="b", replica="r2")]
    assert check.measure(seen(*late)) == 0
    assert check.measure(seen(*late, outcome(12.5, front="b", replica="r1"))) == 1
    assert check.measure(seen(*late, outcome(10.5, front="b", replica="r1"))) == 0


def test_metrics_are_summed_over_labels_and_followed_over_time() -> None:
    text = '# HELP a b\na{x="1"} 2\na{x="2 3"} 3.5\nb 1e3\n'
    assert parse_metrics(text) == {"a": 5.5, "b": 1000.0}
    watched = seen(scrapes=(Scrape(0, {"a": 1.0}), Scrape(1, None), Scrape(2, {"a": 4.0, "b": 1.0})))
    assert watched.values("a") == [1.0, 4.0]
    assert watched.grown("a") == 3.0
    assert watched.grown("b") == 1.0
    assert seen().grown("a") is None


def test_the_load_is_the_same_for_control_and_experiment_but_for_the_surge() -> None:
    drill = replace(DRILL, load=Mix(leaving_share=0.3), surge=Mix(priorities={"sheddable": 1.0}))
    without, with_surge = (drill.questions(7, with_surge=on) for on in (False, True))
    assert [one for one in with_surge if one[1].headers["x-priority"] == "standard"] == without
    added = [due_s for due_s, question in with_surge if question.headers["x-priority"] == "sheddable"]
    assert added
    assert all(drill.fault_s <= due_s <= drill.heal_s for due_s in added)
    assert any(question.leaves_after_tokens for _, question in without)


def test_drills_are_declared_whole() -> None:
    assert len(DRILLS) >= 26
    for name, drill in DRILLS.items():
        assert name == drill.name
        assert drill.setup != drill.unprotected
        assert drill.fault_s < drill.heal_s <= drill.duration_s
        assert drill.by_hand or drill.surge
