"""A supervisor's decisions, as tables of literals."""

import random

import pytest

from replicas.engine_load import EngineLoad
from replicas.exit_reason import ExitReason
from replicas.lifecycle import Patience, Vitals, backoff_s, failures_after, is_right_check_due, must_go
from replicas.probe import ProbeResult

PATIENCE = Patience(right_every_s=30.0, hung_after_s=20.0, wrong_after=2, stable_s=120.0)
CRASHED = ExitReason("crashed", "")
HEALTHY = Vitals(answered_at=100.0, right_checked_at=100.0, progress=5.0)


class Highest(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return b


def probed(kind: str, *, is_full: bool = False) -> ProbeResult:
    return ProbeResult(kind, kind, 0.1, 0.0, "", is_full)  # type: ignore[arg-type]


def load(running: int, progress: float) -> EngineLoad:
    return EngineLoad(running, 0, progress, 0.0)


@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 1.0), (2, 2.0), (3, 4.0), (5, 16.0), (6, 30.0), (7, 30.0), (5000, 30.0)]
)
def test_back_off_doubles_up_to_its_limit(failures: int, seconds: float) -> None:
    assert backoff_s(failures, PATIENCE, Highest()) == seconds


def test_back_off_is_jittered() -> None:
    waits = {backoff_s(3, PATIENCE, random.Random(seed)) for seed in range(50)}
    assert len(waits) > 40
    assert all(3.0 <= wait <= 4.0 for wait in waits)


@pytest.mark.parametrize(
    ("before", "ready_for_s", "reason", "after"),
    [
        (0, 0.0, CRASHED, 1),
        (3, 119.0, CRASHED, 4),
        (3, 120.0, CRASHED, 1),
        (0, 0.0, ExitReason("bad_config", ""), 8),
        (0, 0.0, ExitReason("port_taken", ""), 1),
    ],
)
def test_failures_count_until_an_engine_was_stable(
    before: int, ready_for_s: float, reason: ExitReason, after: int
) -> None:
    assert failures_after(before, ready_for_s, reason, PATIENCE) == after


@pytest.mark.parametrize(
    ("vitals", "now", "kind"),
    [
        (HEALTHY, 119.9, None),
        (HEALTHY, 120.0, "hung"),
        (HEALTHY.with_health(probed("ok"), 119.0), 130.0, None),
        (HEALTHY.with_health(probed("failed"), 119.0), 120.0, "hung"),
        (Vitals(110.0, 100.0, wrongs=1), 111.0, None),
        (Vitals(110.0, 100.0, wrongs=2), 111.0, "wrong"),
        (Vitals(120.0, 100.0, due_since=101.0), 120.9, None),
        (Vitals(120.0, 100.0, due_since=101.0), 121.0, "hung"),
    ],
)
def test_when_an_engine_must_go(vitals: Vitals, now: float, kind: str | None) -> None:
    reason = must_go(vitals, now, PATIENCE)
    assert (None if reason is None else reason.kind) == kind


def test_a_busy_engine_that_gets_on_is_never_hung() -> None:
    vitals = HEALTHY
    for second in range(100, 500, 5):
        vitals = vitals.with_health(probed("ok"), second).with_load(load(8, second), second)
        vitals = vitals.with_right(probed("failed"), second)
        vitals = vitals.with_load(load(8, second + 1), second + 1)
        assert must_go(vitals, second + 2, PATIENCE) is None


def test_a_stuck_sequence_is_not_a_hung_engine_while_the_known_prompt_passes() -> None:
    vitals = HEALTHY
    for second in range(100, 500, 5):
        vitals = vitals.with_health(probed("ok"), second).with_load(load(1, 5.0), second)
        if is_right_check_due(vitals, second, PATIENCE):
            vitals = vitals.with_right(probed("ok"), second)
        assert must_go(vitals, second, PATIENCE) is None


def test_an_engine_without_progress_and_without_an_answer_is_hung() -> None:
    vitals = HEALTHY.with_load(load(1, 5.0), 101.0)
    assert vitals.due_since == 101.0
    assert not is_right_check_due(vitals, 110.9, PATIENCE)
    assert is_right_check_due(vitals, 111.0, PATIENCE)
    vitals = vitals.with_right(probed("failed"), 111.0).with_health(probed("ok"), 121.0)
    reason = must_go(vitals, 121.0, PATIENCE)
    assert reason is not None
    assert reason.kind == "hung"


def test_a_full_engine_is_not_ill() -> None:
    vitals = HEALTHY.with_right(probed("failed", is_full=True), 101.0).with_health(probed("ok"), 140.0)
    assert must_go(vitals, 141.0, PATIENCE) is None


def test_an_engine_that_has_no_metrics_is_judged_by_the_rest() -> None:
    assert HEALTHY.with_load(None, 101.0) == HEALTHY


@pytest.mark.parametrize(
    ("vitals", "now", "is_due"),
    [
        (HEALTHY, 129.0, False),
        (HEALTHY, 130.0, True),
        (HEALTHY.with_right(probed("wrong"), 101.0), 101.0, True),
        (HEALTHY.with_right(probed("ok"), 129.0), 130.0, False),
    ],
)
def test_when_the_known_prompt_is_due(vitals: Vitals, now: float, is_due: bool) -> None:
    assert is_right_check_due(vitals, now, PATIENCE) == is_due
