"""Histories of sessions, and what must hold of them: no turn that was acknowledged is lost silently.

In the style of Jepsen: clients note when each turn began and ended and what its answer said, and the checker looks for
what no correct memory could have said, whatever happened to it meanwhile.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NOT_KEPT = ("local", "unconfirmed")
"""What answers say of turns that may be lost."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answered turn. Times are monotonic seconds of one clock."""

    session: str
    begun_at: float
    ended_at: float
    gateway: int
    epoch: int
    number: int
    durability: str
    replica: str = ""

    @property
    def place(self) -> tuple[int, int]:
        """Turns of a session are in this order."""
        return self.epoch, self.number

    @property
    def is_kept(self) -> bool:
        """Whether the answer said that the turn outlives its gateway, and a server."""
        return self.durability not in NOT_KEPT


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a history shows."""

    turns: int
    local: int
    """Turns that were said to be known to their gateway alone, or to a server that could not confirm them."""
    epochs: int
    """Sessions that were told, once or again, that turns of theirs may be forgotten."""
    violations: tuple[str, ...]


def check(
    turns: Sequence[Turn],
    died: Iterable[tuple[int, float]] = (),
    may_lose: bool = True,
    heals_at: float = 0.0,
) -> Verdict:
    """Judges one history.

    Args:
        died: gateways that were killed, and when: what only they knew is gone, as they had said.
        may_lose: whether anything happened to the store; without, no epoch may end.
        heals_at: from then on all was well, and what gateways had said by themselves had been put into the store.
    """
    by_session: dict[str, list[Turn]] = defaultdict(list)
    for turn in turns:
        by_session[turn.session].append(turn)
    deaths = list(died)
    violations = [v for of_one in by_session.values() for v in _violations(of_one, deaths, heals_at)]
    epochs = sum(len({t.epoch for t in of_one if t.is_kept}) > 1 for of_one in by_session.values())
    if epochs and not may_lose:
        violations.append(f"{epochs} sessions began anew though nothing had happened to the store")
    local = sum(not turn.is_kept for turn in turns)
    return Verdict(len(turns), local, epochs, tuple(violations))


def _violations(turns: list[Turn], died: list[tuple[int, float]], heals_at: float) -> list[str]:
    kept = sorted((turn for turn in turns if turn.is_kept), key=lambda turn: turn.begun_at)
    twice = [place for place, count in Counter(turn.place for turn in kept).items() if count > 1]
    found = [f"{turns[0].session}: turn {number} of epoch {epoch} twice" for epoch, number in twice]
    found += [
        f"{early.session}: {early.place} was acknowledged ({early.durability}), and {late.place} came later"
        for early in kept
        for late in kept
        if early.ended_at < late.begun_at and late.place < early.place
    ]
    last = [turn for turn in kept if turn.begun_at >= heals_at > 0]
    found += [
        f"{own.session}: {own.place} was known to gateway {own.gateway}, and {late.place} came after all was well"
        for own in turns
        for late in last
        if not own.is_kept and own.ended_at < heals_at and late.place <= own.place
        if not any(gateway == own.gateway and at >= own.begun_at for gateway, at in died)
    ]
    return found
