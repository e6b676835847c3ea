"""What a load generator has to say of itself: how late it was, how busy, and whether its figures can be trusted."""

from collections.abc import Iterable
from dataclasses import dataclass

from loadtests.thresholds import LAG, TOKEN_GAP, Entry, quantile_s

WAKES, READS, DISPATCHES, TRANSIT = "wakes", "reads", "dispatches", "engine to kernel"
BUSY_SHARE = 0.95
LATE_S = 0.005


@dataclass(frozen=True, slots=True)
class Lag:
    """Seconds."""

    p50_s: float
    p99_s: float
    count: int

    def text(self) -> str:
        return f"p50 {self.p50_s * 1e3:.0f} ms, p99 {self.p99_s * 1e3:.0f} ms"


@dataclass(frozen=True, slots=True)
class OwnLag:
    """Of one run. `reads` has nothing where the kernel doesn't say when tokens arrived."""

    wakes: Lag
    reads: Lag
    transit: Lag
    token_gap_s: float
    core_share: float

    @property
    def doubts(self) -> list[str]:
        """Why its figures can't be trusted; nothing where they can."""
        found: list[str] = []
        if self.core_share > BUSY_SHARE:
            found.append(f"its core was busy for {self.core_share:.0%} of the time")
        if self.reads.count and self.reads.p99_s >= self.token_gap_s > 0:
            found.append("it read tokens of one stream two at a time, which then have one time")
        if not self.reads.count and self.wakes.p99_s > max(LATE_S, self.token_gap_s / 4):
            found.append("tokens are timed when they are read, and it was late to read")
        return found

    def text(self) -> str:
        lines = [f"the generator itself: {self.core_share:.0%} of a core; late to wake: {self.wakes.text()}"]
        if self.reads.count:
            lines.append(
                f"  late to read: {self.reads.text()}; not in the figures, tokens are timed by the kernel"
            )
        if self.transit.count:
            lines.append(f"  from the engine's write to the kernel's stamp: {self.transit.text()}")
        verdict = "; ".join(self.doubts)
        return "\n".join(
            [
                *lines,
                f"  its figures can't be trusted: {verdict}" if verdict else "  its figures can be trusted",
            ]
        )


def own_lag(entries: Iterable[Entry], core_share: float) -> OwnLag:
    """From Locust's statistics."""
    known = list(entries)
    gaps = [entry for entry in known if entry.method == TOKEN_GAP]
    wakes, reads, transit = (_lag(known, name) for name in (WAKES, READS, TRANSIT))
    return OwnLag(wakes, reads, transit, quantile_s(gaps, 0.5), core_share)


def _lag(entries: list[Entry], name: str) -> Lag:
    found = [entry for entry in entries if entry.method in (LAG, TRANSIT) and entry.name == name]
    count = sum(entry.num_requests for entry in found)
    return Lag(quantile_s(found, 0.5), quantile_s(found, 0.99), count)
