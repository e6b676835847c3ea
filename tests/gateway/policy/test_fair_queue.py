"""Fair shares: who is next, checked against what a plain list would say, and against the bound that fairness has."""

from dataclasses import dataclass
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.policy.fair_queue import FairQueue, TenantTimes


@dataclass(eq=False)
class Entry:
    tenant: str
    order: tuple[float, int]
    weight: float = 1.0
    is_gone: bool = False
    lane: int = 0


class Pair:
    """Two queues that share their fairness, as the waiters for any replica and those for one do."""

    def __init__(self) -> None:
        self.times = TenantTimes()
        self.lanes = [FairQueue[Entry](self.times), FairQueue[Entry](self.times)]
        self.waiting: list[Entry] = []
        self._number = count()

    def arrive(self, tenant: str, deadline: float = 0.0, weight: float = 1.0, lane: int = 0) -> Entry:
        entry = Entry(tenant, (deadline, next(self._number)), weight, lane=lane)
        self.lanes[lane].push(entry)
        self.waiting.append(entry)
        return entry

    def serve(self, shuns: str = "") -> Entry | None:
        """The next of both lanes whose tenant is not that one."""
        found = [n for lane in self.lanes if (n := lane.first(lambda e: e.tenant != shuns)) is not None]
        if not found:
            return None
        chosen = min(found, key=lambda n: n.order)
        self.times.charge(chosen.entry.tenant, chosen.start, chosen.entry.weight)
        self.end(chosen.entry)
        return chosen.entry

    def end(self, entry: Entry) -> None:
        entry.is_gone = True
        self.waiting.remove(entry)


TENANTS = "abcd"
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.sampled_from(TENANTS), st.integers(0, 3), st.integers(0, 1)),
        st.tuples(st.just("serve"), st.sampled_from(["", *TENANTS]), st.just(0), st.just(0)),
        st.tuples(st.just("leave"), st.just(""), st.integers(0, 99), st.just(0)),
    ),
    max_size=120,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_it_serves_whenever_somebody_fits_and_the_earliest_of_a_tenant_first(
    steps: list[tuple[str, str, int, int]],
) -> None:
    pair = Pair()
    for name, tenant, number, lane in steps:
        if name == "arrive":
            pair.arrive(tenant, float(number), lane=lane)
        elif name == "leave" and pair.waiting:
            pair.end(pair.waiting[number % len(pair.waiting)])
        elif name == "serve":
            fit = [e for e in pair.waiting if e.tenant != tenant]
            served = pair.serve(shuns=tenant)
            assert (served is None) == (not fit)
            if served is not None:
                rivals = [e for e in fit if (e.tenant, e.lane) == (served.tenant, served.lane)]
                assert served.order == min(e.order for e in rivals)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=2, max_size=4),
    st.lists(st.integers(0, 1), min_size=40, max_size=40),
)
def test_tenants_that_always_have_work_are_served_by_weight(weights: list[float], lanes: list[int]) -> None:
    pair = Pair()
    served = dict.fromkeys(range(len(weights)), 0)
    for turn, lane in enumerate(lanes):
        for tenant, weight in enumerate(weights):
            # One floods the queue, all others have one request waiting.
            waiting = sum(e.tenant == str(tenant) for e in pair.waiting)
            for _ in range(10 if tenant == 0 and turn == 0 else int(waiting == 0)):
                pair.arrive(str(tenant), weight=weight, lane=lane)
        entry = pair.serve()
        assert entry is not None
        served[int(entry.tenant)] += 1
    shares = [served[tenant] / weight for tenant, weight in enumerate(weights)]
    # Golestani's bound for two of them, at every moment and so at the end.
    assert max(shares) - min(shares) <= 2 * max(1 / w for w in weights) + 1e-9


def test_what_a_tenant_did_not_use_is_not_saved_up() -> None:
    pair = Pair()
    for _ in range(100):
        pair.arrive("busy")
        assert pair.serve() is not None
    for _ in range(10):
        pair.arrive("back")
        pair.arrive("busy")
    order = [entry.tenant for _ in range(20) if (entry := pair.serve())]
    assert order.count("back") == 10
    assert all(abs(order[:n].count("back") - order[:n].count("busy")) <= 1 for n in range(21))


def test_those_that_left_do_not_pile_up() -> None:
    queue = FairQueue[Entry](TenantTimes())
    for number in range(10_000):
        entry = Entry("a", (0.0, number))
        queue.push(entry)
        entry.is_gone = True
    assert sum(len(line) for line in queue._lines.values()) <= 32
