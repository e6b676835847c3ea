"""What a load generator says of itself: when its figures can be trusted, and when a segment really arrived."""

import socket
import threading
import time
from dataclasses import dataclass, field

import pytest

from loadtests.generator import READS, TRANSIT, WAKES, Lag, OwnLag, own_lag
from loadtests.stamps import StampedReader
from loadtests.thresholds import LAG, TOKEN_GAP

NONE, QUICK, SLOW = Lag(0.0, 0.0, 0), Lag(0.001, 0.004, 100), Lag(0.01, 0.06, 100)


@pytest.mark.parametrize(
    ("lag", "why"),
    [
        (OwnLag(QUICK, QUICK, NONE, 0.05, 0.6), None),
        (OwnLag(SLOW, QUICK, NONE, 0.05, 0.6), None),
        (OwnLag(SLOW, SLOW, NONE, 0.05, 0.6), "two at a time"),
        (OwnLag(QUICK, NONE, NONE, 0.05, 0.6), None),
        (OwnLag(SLOW, NONE, NONE, 0.05, 0.6), "late to read"),
        (OwnLag(QUICK, QUICK, NONE, 0.05, 0.99), "busy for 99%"),
    ],
)
def test_figures_are_trusted_as_long_as_lateness_is_not_in_them(lag: OwnLag, why: str | None) -> None:
    assert bool(lag.doubts) == (why is not None)
    assert (why or "can be trusted") in lag.text()


@dataclass
class Entry:
    method: str
    name: str
    response_times: dict[int, int]
    num_failures: int = 0
    num_requests: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_requests = sum(self.response_times.values())


def test_lags_are_read_from_the_run_s_own_statistics() -> None:
    entries = [
        Entry(LAG, WAKES, {1: 98, 30: 2}),
        Entry(LAG, READS, {2: 100}),
        Entry(TRANSIT, TRANSIT, {1: 10}),
        Entry(TOKEN_GAP, "Streams", {50: 4}),
    ]
    found = own_lag(entries, 0.5)
    assert found == OwnLag(Lag(0.001, 0.03, 100), Lag(0.002, 0.002, 100), Lag(0.001, 0.001, 10), 0.05, 0.5)


def test_what_is_read_late_has_the_time_of_its_arrival() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as here,
        server.accept()[0] as there,
    ):
        reader = StampedReader(here)
        if not reader.is_stamped:
            pytest.skip("the kernel does not say when a segment arrived")
        before = time.monotonic()
        there.sendall(b"token")
        sent = time.monotonic()
        # Late on purpose.
        threading.Event().wait(0.3)
        data, arrived_at, lag_s = reader.read(100)
    assert data == b"token"
    assert before - 0.02 <= arrived_at <= sent + 0.1
    assert lag_s >= 0.2
