"""`graceway bench scaling` and `bench mig`, small."""

import re
import subprocess
import sys
import warnings

import pytest

from deploy.bench_scaling import SCALERS, Row, claims, measure_planner
from deploy.bench_scaling_page import page
from replicas.autoscaling.simulator import GracewayScaler, Tier, simulate
from replicas.autoscaling.traces import trace
from replicas.mig.geometry import GEOMETRIES


def row(trace: str, scaler: str, attainment: float, hours: float, reversals: int = 1) -> Row:
    return Row(trace, scaler, attainment, attainment, hours, float(reversals), reversals)


@pytest.mark.parametrize(
    ("ours", "holds"),
    [
        (row("ramp", "graceway", 0.99, 5.0), True),
        (row("ramp", "graceway", 0.98, 5.0), False),
        (row("ramp", "graceway", 0.99, 5.1), False),
    ],
)
def test_a_claim_fails_when_the_rows_say_otherwise(ours: Row, holds: bool) -> None:
    judged = list(claims([ours, row("ramp", "serve", 0.98, 5.0), row("ramp", "oracle", 1.0, 4.0)]))
    assert [claim.holds for claim in judged] == [holds]


def test_reversals_and_the_oracles_hours_are_judged_too() -> None:
    rows = [
        row("step", "graceway", 0.99, 4.0, reversals=2),
        row("step", "serve", 0.98, 5.0),
        row("step", "oracle", 1.0, 3.0),
        row("diurnal", "graceway", 0.99, 4.6),
        row("diurnal", "serve", 0.98, 5.0),
        row("diurnal", "oracle", 1.0, 4.0),
    ]
    held = {claim.text: claim.holds for claim in claims(rows)}
    assert held["step: at most one reversal"] is False
    assert held["diurnal: within 15 % of the oracle's replica-hours"] is True


def test_the_page_shows_each_trace_with_a_line_for_each_policy() -> None:
    rows = [row(name, scaler, 0.99, 4.0) for name in ("step", "spike") for scaler in SCALERS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = page(rows, claims(rows), seed=1)
    assert text.count("<svg") == 2
    assert text.count("<polyline") == 2 * 4
    assert "FAILS: step: attains more" in text
    # From two requests a second to eight, and back.
    needed = re.findall(r'points="([^"]+)"[^>]*><title>needed', text)[0].split()
    heights = [float(point.split(",")[1]) for point in needed]
    assert heights[0] == heights[-1] > min(heights)
    assert "http://" not in text


def test_serves_default_is_serves_own_and_reacts_after_its_delay() -> None:
    with warnings.catch_warnings():
        # Serve's own models use what pydantic has deprecated.
        warnings.simplefilter("ignore")
        from deploy.bench_scaling import ServeDefaultScaler

        tier = Tier()
        theirs = simulate(trace("step", 1), ServeDefaultScaler(tier), tier, 1)
    ours = simulate(trace("step", 1), GracewayScaler(tier.spec), tier, 1)
    first_up = next(at for at, _ in theirs.targets if at > 300)
    assert 330 <= first_up <= 345
    last_down = theirs.targets[-1][0]
    assert last_down >= 1200 + 300
    assert ours.requests == theirs.requests
    assert ours.attained > theirs.attained


def test_the_planner_is_timed() -> None:
    times = measure_planner(GEOMETRIES["H200-141GB"], gpus=2, cases=20, seed=1)
    assert 0 < times.planned <= times.cases == 20
    assert 0 < times.p50_s <= times.p99_s <= times.worst_s


def test_the_command_prints_a_table_and_judges_it() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "deploy", "bench", "scaling", "--seeds", "1"]
    command += ["--trace", "spike", "--workers", "1"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert "replica-hours" in ran.stdout
    assert ran.stdout.count("oracle") == 1
    assert ("FAILS" in ran.stdout) == (ran.returncode == 1)
