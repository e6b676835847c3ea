"""What a client calls whole, refused, left or failed, and the limits that fail a run."""

from dataclasses import dataclass, field

import pytest

from loadtests.client import Question, Record
from loadtests.judgement import Judgement, Verify, judged
from loadtests.thresholds import Thresholds
from loadtests.tokens import decode

QUESTION = Question(({"role": "user", "content": "how are you"},), 10)
IDS = QUESTION.expected_ids()


def record(text: str | None = None, **details: object) -> Record:
    found = Record(0.0, QUESTION, 0.0, 1.0, [0.1, 0.2], decode(IDS) if text is None else text, 200)
    found.finish_reason, found.is_done = "length", True
    for name, value in details.items():
        setattr(found, name, value)
    return found


@pytest.mark.parametrize(
    ("met", "verify", "kind", "why"),
    [
        (record(), "tokens", "whole", ""),
        (record(finish_reason="stop", text=" anything"), "shape", "whole", ""),
        (record(text=" something else"), "tokens", "failed", "divergent"),
        (record(text=decode(IDS[:4] + IDS[5:])), "tokens", "failed", "lost"),
        (record(text=decode(IDS[:4] + IDS[3:])), "tokens", "failed", "repeated"),
        (record(text=decode(IDS[:4])), "tokens", "failed", "ended early"),
        (record(text="Please wait.", headers={"x-served-tier": "canned"}), "tokens", "whole", ""),
        (record(is_done=False), "shape", "failed", "silent end"),
        (record(finish_reason=None), "shape", "failed", "silent end"),
        (record(token_times=[], text=""), "shape", "failed", "no token"),
        (record(error_event="gone", is_done=False), "tokens", "failed", "error event"),
        (record(error_event="gone"), "tokens", "failed", "error event, then [DONE]"),
        (record(failure="left"), "tokens", "left", ""),
        (record(failure="cut"), "shape", "failed", "cut"),
        (record(status=500), "shape", "failed", "status 500"),
        (record(status=429), "shape", "failed", "status 429"),
        (record(status=429, headers={"x-shed-reason": "deadline"}), "tokens", "shed", "deadline"),
        (record(status=503, headers={"x-shed-reason": "no_tier"}), "tokens", "shed", "no_tier"),
    ],
)
def test_judgements(met: Record, verify: Verify, kind: str, why: str) -> None:
    assert judged(met, verify) == Judgement(kind, why)  # type: ignore[arg-type]


@dataclass
class Line:
    method: str
    name: str
    num_requests: int
    num_failures: int = 0
    response_times: dict[int, int] = field(default_factory=dict)


CALM = [
    Line("ask", "Chats", 90),
    Line("ask", "OpenLoop", 10),
    Line("TTFT", "Chats", 90, 0, {50: 90}),
    Line("TTFT", "OpenLoop", 10, 0, {60: 8, 2000: 2}),
    Line("longest gap", "Chats", 90, 0, {40: 90}),
    Line("generator lag", "wakes", 1000, 0, {1: 995, 300: 5}),
    Line("shed", "deadline", 3),
    Line("degraded", "queue_full", 20),
]


@pytest.mark.parametrize(
    ("limits", "misses"),
    [
        (Thresholds(), []),
        (Thresholds(max_ttft_p99_s=1.9), ["ttft p99 s is 2, limit 1.9"]),
        (Thresholds(max_ttft_p99_s=2.1), []),
        (Thresholds(max_gap_p99_s=0.03), ["gap p99 s is 0.04, limit 0.03"]),
        (Thresholds(max_shed_share=0.02), ["shed share is 0.03, limit 0.02"]),
        (Thresholds(max_degraded_share=0.1), ["degraded share is 0.2, limit 0.1"]),
        (Thresholds(min_asked=101), ["asked is 100, limit 101"]),
    ],
)
def test_limits(limits: Thresholds, misses: list[str]) -> None:
    assert limits.misses(CALM) == misses


def test_failures_lag_and_an_empty_run_fail_without_being_asked_to() -> None:
    assert Thresholds().misses([Line("ask", "Chats", 100, 1)]) == ["failed share is 0.01, limit 0"]
    late = [*CALM, Line("generator lag", "dispatches", 100, 0, {400: 100})]
    assert Thresholds().misses(late) == ["lag p99 s is 0.4, limit 0.1"]
    assert Thresholds().misses([]) == ["asked is 0, limit 1"]
