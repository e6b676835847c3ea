"""Whether a rung of a ladder is known to hold: it was drilled, or has served of late. One that nobody ever tried is a hope."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Drilled:
    """What came of forcing traffic onto a tier. `at` is Unix time."""

    at: float
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """`at` is when the rung was last exercised, Unix time; None: never, or too long ago to be remembered."""

    is_proven: bool
    text: str
    at: float | None = None


def proof(drilled: Drilled | None, served_at: float | None, now: float, age_s: float) -> Proof:
    """A drill that failed counts until a later one passes; otherwise the latest exercise within `age_s` is proof."""
    if drilled is not None and not drilled.passed and now - drilled.at <= age_s:
        return Proof(False, f"its drill failed{': ' + drilled.detail if drilled.detail else ''}", drilled.at)
    times = [at for at in (drilled.at if drilled and drilled.passed else None, served_at) if at is not None]
    if not times:
        return Proof(False, "never exercised")
    latest = max(times)
    if now - latest > age_s:
        return Proof(False, "not exercised for too long", latest)
    return Proof(True, "drilled" if served_at is None or latest > served_at else "served", latest)
