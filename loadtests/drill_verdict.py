"""What a drill says in the end: the hypothesis line by line, control and experiment side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from loadtests.drill_observed import Observed
from loadtests.drill_plan import Check, Drill

Word = Literal["passed", "failed", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Line:
    """One check on both systems."""

    what: str
    wanted: str
    control: str
    experiment: str
    is_kept_in_control: bool
    is_kept: bool

    @property
    def verdict(self) -> str:
        if not self.is_kept_in_control:
            return "not steady"
        return "kept" if self.is_kept else "NOT KEPT"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`inconclusive`: without the fault it was not steady either, so that nothing can be said about the fault."""

    drill: str
    word: Word
    why: str
    lines: tuple[Line, ...]
    asked: int
    notes: tuple[str, ...]

    def text(self) -> str:
        width = max(len(line.what) for line in self.lines) + 1
        head = f"{'':<{width}}{'wanted':>14}{'control':>14}{'experiment':>14}"
        rows = [
            f"{line.what:<{width}}{line.wanted:>14}{line.control:>14}{line.experiment:>14}  {line.verdict}"
            for line in self.lines
        ]
        ends = f"{self.drill}: {self.word}" + (f" ({self.why})" if self.why else "")
        return "\n".join([head, *rows, *self.notes, ends])


def verdict_on(drill: Drill, control: Observed, experiment: Observed) -> Verdict:
    """The judgement on both runs."""
    lines = tuple(_line(check, control, experiment) for check in drill.checks)
    word, why = _word(lines, control, experiment)
    asked = len(control.outcomes) + len(experiment.outcomes)
    return Verdict(drill.name, word, why, lines, asked, (*control.notes, *experiment.notes))


def _line(check: Check, control: Observed, experiment: Observed) -> Line:
    without = check.measure(control) if check.steady else None
    found = check.measure(experiment)
    return Line(
        what=check.what,
        wanted=check.wanted,
        control=check.shown(without) if check.steady else "–",
        experiment=check.shown(found),
        is_kept_in_control=not check.steady or check.is_kept(without),
        is_kept=check.is_kept(found),
    )


def _word(lines: Sequence[Line], control: Observed, experiment: Observed) -> tuple[Word, str]:
    if not control.outcomes or not experiment.outcomes:
        return "inconclusive", "nothing was asked"
    if control.notes or not all(line.is_kept_in_control for line in lines):
        return "inconclusive", "it was not steady without the fault either"
    if experiment.notes:
        return "failed", "aborted"
    missed = [line.what for line in lines if not line.is_kept]
    return ("failed", "; ".join(missed)) if missed else ("passed", "")
