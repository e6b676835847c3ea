"""A drill, declared: the system that is steady, what is done to it, and what must hold all the same."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from loadtests.client import Question, poisson
from loadtests.drill_observed import Observed
from loadtests.fleet import Plan
from loadtests.trial import Act, nothing

SESSIONS = 8
QUICK_HEALTH = "health: {interval_s: 1.0, timeout_s: 1.0, up_after: 1}\n"
"""So that a replica is back within a drill; the default takes 5 s between two probes."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the hypothesis: a figure and its bounds. A figure of None can't be seen here, and decides nothing.

    A check that is not `steady` says what the fault must bring about, and is not made of the control.
    """

    what: str
    measure: Callable[[Observed], float | None]
    least: float | None = None
    most: float | None = None
    steady: bool = True
    unit: str = ""

    def is_kept(self, value: float | None) -> bool:
        if value is None:
            return True
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    @property
    def wanted(self) -> str:
        bounds = ((self.least, "≥"), (self.most, "≤"))
        return " ".join(f"{sign} {self.shown(bound)}" for bound, sign in bounds if bound is not None)

    def shown(self, value: float | None) -> str:
        if value is None:
            return "not seen"
        return f"{value:.1%}" if self.unit == "%" else f"{value:.4g} {self.unit}".strip()


@dataclass(frozen=True, slots=True)
class Mix:
    """Poisson arrivals of streamed chats. Some have a session; some clients hang up after five tokens."""

    rate_per_s: float = 8.0
    tokens: int = 50
    leaving_share: float = 0.0
    session_share: float = 0.5
    priorities: dict[str, float] = field(default_factory=lambda: {"standard": 1.0})

    def due(
        self, begins_s: float, ends_s: float, rng: random.Random, name: str
    ) -> list[tuple[float, Question]]:
        """What is asked between two times, and when."""
        times = poisson(self.rate_per_s, ends_s - begins_s, rng)
        return [(begins_s + at_s, self.question(rng, f"{name} {n}")) for n, at_s in enumerate(times)]

    def question(self, rng: random.Random, name: str) -> Question:
        """One request."""
        headers = {"x-priority": rng.choices(list(self.priorities), list(self.priorities.values()))[0]}
        if rng.random() < self.session_share:
            headers["x-session-id"] = f"session {rng.randrange(SESSIONS)}"
        leaves = 5 if rng.random() < self.leaving_share else None
        messages = ({"role": "user", "content": f"question {name}"},)
        return Question(messages, self.tokens, headers, leaves)


@dataclass(frozen=True, slots=True)
class Abort:
    """When a drill has gone too far: more than `share` of the last `window_s` seconds' answers failed."""

    share: float = 0.9
    window_s: float = 5.0
    least: int = 20


@dataclass(frozen=True, slots=True)
class Setup:
    """A system, and what is done to it."""

    plan: Plan = field(default_factory=lambda: Plan(more_config=QUICK_HEALTH))
    fault: Act = nothing
    heal: Act = nothing


@dataclass(frozen=True, slots=True)
class Drill:
    """`unprotected` is the same with the protection switched off: there, the drill must fail.

    `by_hand` says what an operator's own fault command has to do; it is empty where the load itself is the fault.
    """

    name: str
    about: str
    protection: str
    setup: Setup
    unprotected: Setup
    checks: tuple[Check, ...]
    by_hand: str = ""
    load: Mix = Mix()
    surge: Mix | None = None
    """More load from the fault to the healing, not in the control."""
    fault_s: float = 5.0
    heal_s: float = 10.0
    duration_s: float = 16.0
    abort: Abort = Abort()

    def questions(self, seed: int, *, with_surge: bool) -> list[tuple[float, Question]]:
        """All that is asked, in order of time."""
        asked = self.load.due(0.0, self.duration_s, random.Random(seed), f"of load {seed}")
        if self.surge is not None and with_surge:
            asked += self.surge.due(self.fault_s, self.heal_s, random.Random(-seed), f"of surge {seed}")
        return sorted(asked, key=lambda one: one[0])
