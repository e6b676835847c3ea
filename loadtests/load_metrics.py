"""What a run's users tell Locust: answers, TTFT, token gaps, refusals, degraded answers, and the generator's own lag."""

import time

import gevent
from locust.env import Environment

from loadtests.client import Record
from loadtests.generator import READS, TRANSIT, WAKES
from loadtests.judgement import Judgement, Verify, judged
from loadtests.stream_socket import SAMPLED
from loadtests.thresholds import ASKED, DEGRADED, LAG, LONGEST_GAP, SHED, TOKEN_GAP, TTFT

BEAT_S = 0.02


class FailedAnswerError(Exception):
    """An answer that was neither whole nor refused as declared."""


class LoadMetrics:
    """Fires Locust's request event, once per figure and answer."""

    def __init__(self, environment: Environment, verify: Verify) -> None:
        self._fire = environment.events.request.fire
        self._verify = verify

    def tell(self, name: str, record: Record, *, times: bool = True) -> Judgement:
        """All that one streamed answer has to say; without `times` where the client itself was slow to read."""
        judgement = judged(record, self._verify)
        self.tell_outcome(name, judgement, record.ended_at - record.started_at, record.headers)
        if times:
            self._tell_times(name, record)
        return judgement

    def _tell_times(self, name: str, record: Record) -> None:
        times = record.token_times
        if times:
            self._time(TTFT, name, times[0] - record.due_at)
        if len(times) > 1:
            self._time(TOKEN_GAP, name, (times[-1] - times[0]) / (len(times) - 1))
            self._time(LONGEST_GAP, name, record.max_gap_s)
        for lag_s in record.read_lags_s:
            self._time(LAG, READS, lag_s)
        for sent_at, arrived_at in list(zip(record.sent_at, times, strict=False))[::SAMPLED]:
            self._time(TRANSIT, TRANSIT, arrived_at - sent_at)

    def tell_outcome(self, name: str, judgement: Judgement, took_s: float, headers: dict[str, str]) -> None:
        failure = FailedAnswerError(judgement.why) if judgement.is_failed else None
        self._time(ASKED, name, took_s, failure)
        if judgement.kind == "shed":
            self._time(SHED, judgement.why, took_s)
        if "x-degraded" in headers:
            self._time(DEGRADED, headers["x-degraded"], took_s)

    def tell_lag(self, name: str, lag_s: float) -> None:
        self._time(LAG, name, lag_s)

    def _time(self, kind: str, name: str, seconds: float, failure: Exception | None = None) -> None:
        self._fire(
            request_type=kind,
            name=name,
            response_time=seconds * 1000,
            response_length=0,
            exception=failure,
            context={},
        )


def watch_lag(metrics: LoadMetrics) -> None:
    """Runs for ever in a greenlet of its own: how late this process wakes is how late it sees a token."""
    while True:
        due_at = time.monotonic() + BEAT_S
        gevent.sleep(BEAT_S)
        metrics.tell_lag(WAKES, time.monotonic() - due_at)
