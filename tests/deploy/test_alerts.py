"""The alert rules: valid, firing when they should and only then, and about metrics that the gateway has."""

import re
import subprocess
from pathlib import Path

from gateway.app import Gateway
from gateway.specs import BudgetSpec, GatewaySpec, ModelSpec, PriceSpec, TierSpec
from state_store.memory import MemoryStateStore
from tests.needs import need

ALERTS = Path(__file__).parents[2] / "deploy" / "alerts"
RULES = ALERTS / "graceway.rules.yml"


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs promtool, of Debian's package prometheus; without it the test is skipped, but not in CI."""
    found = need("promtool", "prometheus")
    return subprocess.run([found, *arguments], capture_output=True, text=True, timeout=60)


def test_the_rules_are_valid() -> None:
    checked = promtool("check", "rules", str(RULES))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_fires_when_it_should() -> None:
    tested = promtool("test", "rules", str(ALERTS / "graceway.test.yml"))
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_a_test() -> None:
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text()))
    assert alerts == set(re.findall(r"alertname: (\w+)", (ALERTS / "graceway.test.yml").read_text()))


def test_every_alert_has_a_place_in_the_runbook() -> None:
    alerts = re.findall(r"alert: (\w+)", RULES.read_text())
    links = re.findall(r"runbook_url: (\S+)", RULES.read_text())
    assert links == [f"docs/runbook.md#{name.lower()}" for name in alerts]
    headings = re.findall(r"^### (\w+)$", (ALERTS.parents[1] / "docs" / "runbook.md").read_text(), re.M)
    assert sorted(headings) == sorted(alerts)


def test_the_runbooks_links_lead_somewhere() -> None:
    runbook = (ALERTS.parents[1] / "docs" / "runbook.md").read_text()
    headings = re.findall(r"^#+ (.+)$", runbook, re.M)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    links = set(re.findall(r"\]\(#([^)]+)\)", runbook))
    assert links
    assert links <= anchors


def _gateway() -> Gateway:
    """One that has served nobody yet."""
    tier = TierSpec(
        name="best",
        backend="openai",
        served_model="m",
        replicas=({"url": "http://127.0.0.1:9"},),  # type: ignore[arg-type]
        price=PriceSpec(prompt=1, answer=1),
        budget=BudgetSpec(amount=1),
    )
    return Gateway(GatewaySpec(models={"chat": ModelSpec(tiers=(tier,))}), MemoryStateStore())


async def test_what_is_counted_is_there_before_there_is_any() -> None:
    """In a series that begins with a burst, Prometheus sees no increase: the first critical refusals would wake nobody."""
    counted = re.findall(r"increase\((\w+)\{(\w+)=\"(\w+)\"\}\[", RULES.read_text())
    assert len(counted) == RULES.read_text().count("increase(")
    exposition = _gateway().metrics().decode()
    for name, label, value in counted:
        samples = re.findall(rf'^{name}\{{[^}}]*\b{label}="{value}".*\}} (\S+)$', exposition, re.M)
        assert set(samples) == {"0.0"}, name


async def test_the_metrics_exist() -> None:
    shown = set(re.findall(r"^# TYPE (\w+)", _gateway().metrics().decode(), re.M))
    named = set(re.findall(r"\bgraceway_\w+", "\n".join(_expressions(RULES.read_text()))))
    assert named
    assert {n.removesuffix("_bucket") for n in named} <= shown


def _expressions(rules: str) -> list[str]:
    """The rules without what only people read."""
    return [line for line in rules.splitlines() if not re.match(r"\s*(#|summary|action|runbook_url)", line)]
