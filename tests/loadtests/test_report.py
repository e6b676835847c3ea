"""The report: its plots are well-formed and true to scale, its page holds what was measured."""

import asyncio
import re
import sys
from asyncio import create_subprocess_exec
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest

from loadtests import peers
from loadtests.kills import KillReport
from loadtests.overhead import Cost
from loadtests.peers import PEERS
from loadtests.processes import ROOT
from loadtests.report_page import page
from loadtests.report_plots import bars, dots, lines
from loadtests.report_runs import FULL, Runs, Section, Wanted, run_sections
from loadtests.report_sections import SECTIONS, set_up


def test_a_line_ends_where_its_last_value_is() -> None:
    svg = ElementTree.fromstring(lines("t", "x", "y", {"a": [(0, 0), (10, 1)], "b": [(0, 2), (10, 2)]}, 2.0))
    first, second = (found.get("points", "").split() for found in svg.iter("polyline"))
    assert float(first[0].split(",")[0]) < float(first[-1].split(",")[0])
    floor, middle = float(first[0].split(",")[1]), float(first[-1].split(",")[1])
    top = float(second[0].split(",")[1])
    assert floor - middle == pytest.approx((floor - top) / 2, abs=0.2)


def test_what_is_above_the_plot_is_at_its_top_and_names_are_escaped() -> None:
    svg = ElementTree.fromstring(dots("<t>", "x", "y", {"a & b": [(0, 1), (1, 2), (2, 99)]}, 2.0))
    heights = [float(found.get("cy", "")) for found in svg.iter("circle")]
    assert heights[1] == heights[2] < heights[0]
    assert "a & b" in [text.text for text in svg.iter("text")]


def test_bars_are_as_high_as_their_values() -> None:
    svg = ElementTree.fromstring(bars("t", "y", {"1×": {"a": 0.5, "b": 1.0}, "2×": {"b": 0.25}}, 1.0))
    heights = [float(box.get("height", "")) for box in svg.iter("rect") if box.get("width") != "10"]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2)
    assert heights[1] == pytest.approx(4 * heights[2], abs=0.2)


def test_nothing_measured_still_makes_a_page() -> None:
    ElementTree.fromstring(lines("t", "x", "y", {}))
    assert "<h2>Overload</h2>" in page(Runs(machine={}))


class _Links(HTMLParser):
    """Everything that a page would have to fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_holds_what_was_measured_and_fetches_nothing() -> None:
    runs = Runs(machine={"processor": "2 × a <fast> one"}, commands=["python -m loadtests.report"])
    runs.costs = [Cost("graceway", 1.25, 2.5, 0.5, 1.0, 2000, 40000, 210, 3.0, 9.5, {"p50_ms": (1.11, 1.33)})]
    runs.kills = {"direct": KillReport(9, 5, 4, 100, 91, 0, 9, 0, 0, 0, 0.1, 0)}
    runs.gaps = {"graceway": [(5.1, 0.3)], "direct": [(1.0, 0.02)]}
    runs.goodput = {"graceway": {1.0: 0.97, 3.0: 0.98}, "direct": {3.0: 0.02}}
    runs.restored = {"lengths": [{"tokens": 512, "computed": [4.5], "restored": [1.75], "warm": [0.5]}]}
    text = page(runs)
    for shown in (
        "1.25 [1.11–1.33]",
        "1.75 [1.75–1.75]",
        "2 × a &lt;fast&gt; one",
        "9 kills in 5 processes",
        "97%",
        "python -m loadtests.report",
    ):
        assert shown in text
    links = _Links()
    links.feed(text)
    assert links.found == []


async def test_a_section_that_fails_or_is_late_loses_no_other() -> None:
    async def fails(runs: Runs, wanted: Wanted) -> None:
        raise RuntimeError("no <vLLM> here")

    async def is_late(runs: Runs, wanted: Wanted) -> None:
        await asyncio.Event().wait()

    async def goes_well(runs: Runs, wanted: Wanted) -> None:
        runs.cut_streams["direct"] = 7

    runs, saved = Runs(machine={}), []
    sections = (
        Section("restored", 1.0, fails),
        Section("kills", 1e-3, is_late),
        Section("faults", 1.0, goes_well),
    )
    await run_sections(runs, Wanted((), FULL, 1, 60.0), sections, lambda runs: saved.append(page(runs)))
    assert set(runs.failures) == {"restored", "kills"}
    assert len(saved) == 3
    assert "no &lt;vLLM&gt; here" in saved[-1]
    assert "direct: 7" in saved[-1]


async def test_what_no_time_is_left_for_is_told() -> None:
    async def goes_well(runs: Runs, wanted: Wanted) -> None:
        raise AssertionError("not to be begun")

    runs = Runs(machine={})
    section = Section("faults", 1.0, goes_well)
    await run_sections(runs, Wanted((), FULL, 1, 0.0), (section,), lambda runs: None)
    assert "no time was left" in runs.failures["faults"]


def test_the_plan_is_below_half_an_hour() -> None:
    assert sum(section.minutes for section in SECTIONS) < 28.0


def test_the_others_are_shown_as_they_are_set_up() -> None:
    for name, peer in PEERS.items():
        told = peer.described()
        assert told.startswith(peer.package)
        assert "URL" in told, name
    assert "num_retries: 3" in PEERS["litellm"].described()


async def test_one_that_cannot_be_installed_is_told_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    gone = replace(PEERS["vllm-router"], name="gone", package=str(tmp_path / "gone.whl"))
    monkeypatch.setitem(PEERS, "gone", gone)
    runs = Runs(machine={})
    await set_up(runs, Wanted(("gone", "direct"), FULL, 1, 60.0))
    assert runs.fronts == ["graceway", "direct"]
    assert "gone.whl can&#x27;t be installed" in page(runs)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_brief_report_is_made_from_scratch(tmp_path: Path) -> None:
    command = (
        *(sys.executable, "-m", "loadtests.report", "--brief", "--beside", "direct", "--out", str(tmp_path)),
        *("--sections", "overhead,faults,kills,overload,store,scaling"),
    )
    process = await create_subprocess_exec(*command, cwd=ROOT)
    assert await process.wait() == 0
    found = orjson.loads((tmp_path / "report.json").read_bytes())
    assert found["failures"] == {}
    assert found["faults"]["graceway"][0]["misses"] == []
    assert found["cut_streams"]["direct"] > found["cut_streams"]["graceway"] == 0
    assert len(re.findall("<svg", (tmp_path / "report.html").read_text())) == 3
