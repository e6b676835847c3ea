"""Breakers: the measured faults of pybreaker's own call path, each of which must not be ours, and any order of events."""

import asyncio
from bisect import bisect_left
from random import Random
from typing import Any

import pybreaker
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.breakers import Breaker, Outcome, Pass
from gateway.specs import BreakerSpec

SPEC = BreakerSpec(window_s=10.0, min_count=4, failure_share=0.5, slow_share=0.75, probes=2, backoff_s=1.0)
NOW = 100.0
S, F, SLOW, BUSY, NEUTRAL = (
    Outcome.SUCCESS, Outcome.FAILURE, Outcome.SLOW, Outcome.BACKPRESSURE, Outcome.NEUTRAL,
)  # fmt: skip


class Fixed(Random):
    """No jitter."""

    def random(self) -> float:
        return 0.0


def breaker(spec: BreakerSpec = SPEC, rng: Random | None = None, **more: Any) -> Breaker:
    return Breaker("m/t/r", spec, rng or Fixed(), **more)


def calls(found: Breaker, *outcomes: Outcome, now: float = NOW) -> Breaker:
    for outcome in outcomes:
        found.leave(found.enter(now), outcome, now)
    return found


def opened(**more: Any) -> Breaker:
    return calls(breaker(**more), F, F, F, F)


def half_open() -> tuple[Breaker, Pass]:
    found = opened()
    return found, found.enter(NOW + 1.0)


class TestFaultsOfPybreaker:
    """Measured on 1.4.1; DESIGN lists them."""

    async def test_1_an_async_call_has_succeeded_only_once_it_has_ended(self) -> None:
        # `call()` on an `async def` records success before anything has run.
        found = breaker()
        passes = [found.enter(NOW) for _ in range(4)]
        assert found.state == "closed"

        async def fails(pass_: Pass) -> None:
            await asyncio.sleep(0)
            found.leave(pass_, F, NOW)

        await asyncio.gather(*map(fails, passes))
        assert found.state == "open"

    def test_2_nothing_is_held_while_a_call_runs(self) -> None:
        # `call()` holds the breaker's lock for as long as the call takes.
        found = breaker()
        running = [found.enter(NOW) for _ in range(1000)]
        calls(found, S, S)
        assert found.admits(NOW)
        assert len({p.generation for p in running}) == 1

    def test_3_a_client_that_leaves_is_no_failure(self) -> None:
        # Two cancelled clients open a breaker with fail_max=2.
        assert calls(breaker(), *[NEUTRAL] * 1000).state == "closed"
        assert calls(breaker(), *[NEUTRAL] * 1000, F, F, F).state == "closed"

    def test_4_nor_a_success_that_closes_a_half_open_breaker(self) -> None:
        # Excluded exceptions count as success.
        found, probe = half_open()
        found.leave(probe, NEUTRAL, NOW + 1.0)
        calls(found, *[NEUTRAL] * 50, now=NOW + 1.0)
        assert found.state == "half-open"

    def test_5_half_open_lets_exactly_the_probes_through(self) -> None:
        # 50 of 50 are admitted.
        found = opened()
        admitted = 0
        for _ in range(50):
            try:
                found.enter(NOW + 1.0)
            except pybreaker.CircuitBreakerError:
                continue
            admitted += 1
        assert admitted == SPEC.probes

    def test_6_a_steady_share_of_failures_opens(self) -> None:
        # Four failures in five, for ever, never trip a counter of five in a row.
        found, made = breaker(BreakerSpec(min_count=5)), 0
        while found.admits(NOW + made / 10) and made < 100:
            calls(found, S if made % 5 == 4 else F, now=NOW + made / 10)
            made += 1
        assert (found.state, made) == ("open", 5)

    def test_7_a_late_failure_does_not_re_arm_an_open_breaker(self) -> None:
        found = breaker()
        late = [found.enter(NOW) for _ in range(20)]
        calls(found, F, F, F, F)
        for pass_ in late:
            found.leave(pass_, F, NOW + 0.99)
        assert found.state == "open"
        assert found.admits(NOW + 1.0)

    def test_8_an_open_breaker_refuses_whatever_its_store_does(self) -> None:
        # With Redis down, pybreaker's Redis storage lets an open breaker execute. Here the state is local.
        found = opened()
        refused = 0
        for _ in range(100):
            with pytest.raises(pybreaker.CircuitBreakerError):
                found.enter(NOW + 0.99)
            refused += 1
        assert (refused, found.state) == (100, "open")

    def test_9_slow_calls_count(self) -> None:
        # It knows failures only.
        assert calls(breaker(), SLOW, SLOW, SLOW, S).state == "open"
        assert calls(breaker(), SLOW, SLOW, S, S).state == "closed"

    def test_10_waits_longer_each_time_and_not_in_step_with_others(self) -> None:
        # Its reset timeout is one fixed number.
        waits = [_waits(opened(rng=Random(seed))) for seed in range(20)]
        for n, least_s in enumerate((1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0)):
            column = [w[n] for w in waits]
            assert least_s <= min(column) <= max(column) <= 1.25 * least_s + 0.001
            assert len({round(w, 3) for w in column}) > 15


def _waits(found: Breaker) -> list[float]:
    """How long a breaker whose every probe fails stays open, time after time."""
    now, waits = NOW, []
    for _ in range(7):
        opened_at = now
        now += bisect_left(range(40_000), True, key=lambda ms: found.admits(opened_at + ms / 1e3)) / 1e3
        waits.append(now - opened_at)
        found.leave(found.enter(now), F, now)
    return waits


def test_backpressure_neither_opens_nor_closes() -> None:
    assert calls(breaker(), *[BUSY] * 1000).state == "closed"
    found, probe = half_open()
    found.leave(probe, BUSY, NOW + 1.0)
    assert found.state == "half-open"
    assert found.admits(NOW + 1.0)


def test_too_few_calls_say_nothing() -> None:
    assert calls(breaker(), F, F, F).state == "closed"


def test_what_is_older_than_the_window_says_nothing() -> None:
    found = calls(breaker(), F, F, F)
    assert calls(found, F, now=NOW + 10.1).state == "closed"


def test_probes_that_pass_close_it_and_the_window_begins_anew() -> None:
    found, first = half_open()
    second = found.enter(NOW + 1.0)
    found.leave(first, S, NOW + 1.1)
    assert found.state == "half-open"
    found.leave(second, S, NOW + 1.2)
    assert found.state == "closed"
    assert calls(found, F, F, F, now=NOW + 1.2).state == "closed"


@pytest.mark.parametrize("outcome", [F, SLOW])
def test_one_bad_probe_opens_it_again_for_longer(outcome: Outcome) -> None:
    found, probe = half_open()
    found.leave(probe, outcome, NOW + 1.0)
    assert (found.admits(NOW + 2.9), found.admits(NOW + 3.0)) == (False, True)


def test_who_looks_on_sees_that_it_waits_for_a_request_only() -> None:
    """Without traffic nothing closes it: it would be read as open all night."""
    found = opened()
    assert [found.seen_as(NOW + at) for at in (0.0, 0.99, 1.0, 3600.0)] == [
        "open",
        "open",
        "half-open",
        "half-open",
    ]
    assert found.state == "open"
    assert breaker().seen_as(NOW) == "closed"


def test_after_it_closed_the_back_off_begins_anew() -> None:
    found, first = half_open()
    found.leave(first, F, NOW + 1.0)
    calls(found, S, S, now=NOW + 3.0)
    calls(found, F, F, F, F, now=NOW + 4.0)
    assert (found.admits(NOW + 4.9), found.admits(NOW + 5.0)) == (False, True)


def test_it_opens_after_days_of_probes_that_fail() -> None:
    found, now = opened(), NOW
    for _ in range(3000):
        now += 31.0
        found.leave(found.enter(now), F, now)
    assert found.state == "open"
    assert found.admits(now + 30.0)


def test_listeners_of_pybreaker_hear_of_each_change() -> None:
    heard: list[tuple[str, str, str]] = []

    class Listener(pybreaker.CircuitBreakerListener):  # type: ignore[misc]
        def state_change(self, cb: Any, old_state: Any, new_state: Any) -> None:
            heard.append((cb.name, old_state, new_state))

    found = calls(breaker(listeners=[Listener()]), F, F, F, F)
    calls(found, S, S, now=NOW + 1.0)
    assert heard == [
        ("m/t/r", "closed", "open"), ("m/t/r", "open", "half-open"), ("m/t/r", "half-open", "closed"),
    ]  # fmt: skip


class AnyOrder(RuleBasedStateMachine):
    """Calls begin and end in any order, with any outcome, while time passes."""

    passes = Bundle("passes")

    def __init__(self) -> None:
        super().__init__()
        self.breaker = breaker()
        self.now = NOW
        self.probes: set[int] = set()
        self.current: dict[int, Pass] = {}

    @rule(target=passes)
    def enter(self) -> Pass | None:
        admits, before = self.breaker.admits(self.now), self.breaker.state
        try:
            pass_ = self.breaker.enter(self.now)
        except pybreaker.CircuitBreakerError:
            assert not admits
            return None
        assert admits
        assert pass_.is_probe == (before != "closed")
        if before == "open":
            self.probes.clear()
        if pass_.is_probe:
            self.probes.add(id(pass_))
        self.current[id(pass_)] = pass_  # keeps the id from being used again
        return pass_

    @rule(pass_=consumes(passes), outcome=st.sampled_from(Outcome))
    def leave(self, pass_: Pass | None, outcome: Outcome) -> None:
        if pass_ is None:
            return
        before, reopens = self.breaker.state, self._admits_later()
        generation = self.breaker._generation
        self.breaker.leave(pass_, outcome, self.now)
        after = self.breaker.state
        if outcome in (NEUTRAL, BUSY) or pass_.generation != generation:
            assert (after, self._admits_later()) == (before, reopens) or (before, after) == ("half-open",) * 2
        if after == "closed" and before != "closed":
            assert pass_.is_probe
            assert outcome is S
        if after == "open" and before != "open":
            # A success may be the call that makes them enough to judge.
            assert outcome in ((F, SLOW) if pass_.is_probe else (F, SLOW, S))
        self.probes.discard(id(pass_))
        if after != "half-open":
            self.probes.clear()

    def _admits_later(self) -> list[bool]:
        return [self.breaker.admits(self.now + s) for s in (0.0, 0.5, 1.0, 2.0, 40.0)]

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 5.0, 40.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def never_more_probes_out_than_allowed(self) -> None:
        assert len(self.probes) <= SPEC.probes
        assert self.breaker.state in ("closed", "open", "half-open")

    @invariant()
    def it_always_comes_back(self) -> None:
        if self.breaker.state == "open":
            assert self.breaker.admits(self.now + 30.0)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
