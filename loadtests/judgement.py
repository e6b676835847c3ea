"""What became of one request, as its client may judge it.

With `tokens`, every token is compared with the one that the simulated engine must have said. With `shape`, for models
whose words nobody knows beforehand, an answer is whole when it has text, a finish reason and [DONE].
"""

from dataclasses import dataclass
from typing import Literal

from loadtests.client import Record

Verify = Literal["tokens", "shape"]
Kind = Literal["whole", "shed", "left", "failed"]
OWN_TIERS = frozenset({"canned"})
"""Tiers whose text is not the model's, and can't be compared with it."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """`why` is a reason of few different values, fit to be counted by."""

    kind: Kind
    why: str = ""

    @property
    def is_failed(self) -> bool:
        return self.kind == "failed"


def judged(record: Record, verify: Verify) -> Judgement:
    """The judgement on one streamed answer."""
    if record.failure == "left":
        return Judgement("left")
    if record.status in (429, 503) and "x-shed-reason" in record.headers:
        return Judgement("shed", record.headers["x-shed-reason"])
    if record.failure is not None:
        return Judgement("failed", record.failure)
    if record.status != 200:
        return Judgement("failed", f"status {record.status}")
    if record.error_event is not None:
        return Judgement("failed", "error event, then [DONE]" if record.is_done else "error event")
    return _judged_text(record, verify)


def _judged_text(record: Record, verify: Verify) -> Judgement:
    if not record.is_done or record.finish_reason is None:
        return Judgement("failed", "silent end")
    if not record.token_times:
        return Judgement("failed", "no token")
    if verify == "shape" or record.headers.get("x-served-tier") in OWN_TIERS or record.is_whole:
        return Judgement("whole")
    found = record.difference()
    kinds = {"lost": found.lost, "repeated": found.repeated, "divergent": found.divergent}
    return Judgement("failed", " and ".join(name for name, count in kinds.items() if count) or "ended early")
