"""How a model stands, in words."""

from dataclasses import replace

import pytest

from gateway.standing import Level, Recent, Rung, standing

DOWN = "down (refused)"
SLOW = "ejected (slower than its peers)"


def primary(*out: str, replicas: int = 2, is_serving: bool | None = None) -> Rung:
    return Rung("primary", 1.0, len(out) < replicas if is_serving is None else is_serving, replicas, out)


SMALL = Rung("small", 0.6, True, 1)
CANNED = Rung("canned", 0.0, True)
BEST = Recent({"primary": 10})


@pytest.mark.parametrize(
    ("rungs", "recent", "level", "text"),
    [
        ([primary(), SMALL], BEST, "best", "chat is served by primary"),
        ([primary(), SMALL], Recent(), "best", "chat is served by primary"),
        (
            [primary(DOWN), SMALL],
            BEST,
            "reduced",
            "chat is served by primary; of its 2 replicas 1 is down (refused)",
        ),
        (
            [primary(DOWN, DOWN), SMALL],
            Recent({"small": 3}, {"no_replica": 3}),
            "degraded",
            "chat is served by small because both primary replicas are down (refused)",
        ),
        (
            [primary(DOWN, replicas=1), SMALL],
            Recent(),
            "degraded",
            "chat is served by small because the primary replica is down (refused)",
        ),
        (
            [primary(DOWN, DOWN, SLOW, replicas=3), SMALL],
            Recent(),
            "degraded",
            "chat is served by small because of primary's 3 replicas 2 are down (refused) "
            "and 1 is ejected (slower than its peers)",
        ),
        (
            [primary(DOWN, DOWN, DOWN, replicas=3), Rung("small", 0.6, False, 0), CANNED],
            Recent(),
            "degraded",
            "chat is served by canned because all 3 primary replicas are down (refused) and small has no replica",
        ),
        (
            [primary(DOWN, DOWN)],
            Recent(sheds={"no_replica": 4}),
            "down",
            "chat can't be served: both primary replicas are down (refused)",
        ),
        (
            [primary(), SMALL],
            Recent({"primary": 9, "small": 3}, {"queue_full": 2, "first_token_timeout": 1}),
            "degraded",
            "25 % of chat's answers in the last 10 s came from small because primary was full",
        ),
        (
            [primary(), SMALL, CANNED],
            Recent({"primary": 1, "small": 2, "canned": 1}, {"reset": 3}),
            "degraded",
            "75 % of chat's answers in the last 10 s came from small and canned "
            "because replicas of primary failed (connection reset)",
        ),
        (
            [primary(), SMALL],
            Recent({"primary": 999, "small": 1}, {"deadline": 1}),
            "degraded",
            "less than 1 % of chat's answers in the last 10 s came from small "
            "because primary could not have begun in time",
        ),
        (
            [primary(), SMALL],
            Recent({"small": 2}, {"pinned": 2}),
            "degraded",
            "all of chat's answers in the last 10 s came from small because an operator pinned a lower tier",
        ),
        (
            [primary()],
            Recent({"primary": 9}, {}, {"queue_full": 3}),
            "degraded",
            "chat is served by primary but requests are refused",
        ),
        # What there is to fall back on.
        (
            [primary(), Rung("small", 0.6, False, 1, (DOWN,)), CANNED],
            BEST,
            "reduced",
            "chat is served by primary; the small replica is down (refused)",
        ),
        (
            [primary(DOWN), Rung("small", 0.6, True, 3, (DOWN,)), CANNED],
            BEST,
            "reduced",
            "chat is served by primary; of its 2 replicas 1 is down (refused); of small's 3 replicas 1 is down (refused)",
        ),
        (
            [primary(), Rung("paid", 0.6, True, 1, lacks="has too little money left"), CANNED],
            BEST,
            "reduced",
            "chat is served by primary; paid has too little money left",
        ),
        (
            [primary(DOWN, DOWN), SMALL, Rung("spare", 0.5, False, 1, (DOWN,))],
            Recent(),
            "degraded",
            "chat is served by small because both primary replicas are down (refused); the spare replica is down (refused)",
        ),
        (
            [primary(), Rung("small", 0.6, False, 1, (DOWN,)), CANNED],
            Recent({"canned": 2}, {"queue_full": 2}),
            "degraded",
            "all of chat's answers in the last 10 s came from canned because primary was full; "
            "the small replica is down (refused)",
        ),
        # What is held back, whether or not anybody asks.
        (
            [replace(primary(), share=0.0, held_because="pinned"), SMALL],
            Recent(),
            "degraded",
            "chat is served by small because an operator pinned a lower tier",
        ),
        (
            [
                replace(primary(), share=0.0, held_because="pinned"),
                Rung("paid", 0.6, False, 1, ("out of money",)),
                CANNED,
            ],
            Recent({"canned": 9}, {"pinned": 9}),
            "degraded",
            "chat is served by canned because an operator pinned a lower tier and the paid replica is out of money",
        ),
        (
            [replace(primary(), share=0.5, held_because="override"), SMALL],
            Recent(),
            "reduced",
            "chat is served by primary; primary may have 50 % of its traffic because an operator set primary's share",
        ),
        (
            [replace(primary(), share=0.0, held_because="pressure_errors")],
            BEST,
            "reduced",
            "chat is served by primary; primary may have none of its traffic because too many attempts on primary failed",
        ),
    ],
)
def test_the_sentence(rungs: list[Rung], recent: Recent, level: Level, text: str) -> None:
    found = standing("chat", rungs, recent)
    assert (found.level, found.text) == (level, text)


@pytest.mark.parametrize(
    ("rungs", "recent", "cost"),
    [
        ([primary(), SMALL], BEST, ""),
        (
            [primary(DOWN, DOWN), SMALL],
            Recent({"small": 3}),
            "mean quality 0.6 instead of 1 over the last 10 s",
        ),
        (
            [primary(), SMALL],
            Recent({"primary": 1, "small": 1}, {}, {"deadline": 1, "queue_full": 7}),
            "mean quality 0.8 instead of 1 over the last 10 s; "
            "8 requests refused in the last 10 s (queue full 7, deadline out of reach 1)",
        ),
        (
            [primary(DOWN, DOWN)],
            Recent(sheds={"no_replica": 1}),
            "1 request refused in the last 10 s (no replica could serve 1)",
        ),
        ([primary(), SMALL], Recent({"primary": 9999, "small": 1}), ""),
        (
            [primary(), SMALL],
            Recent({"primary": 99, "small": 1}),
            "mean quality 0.996 instead of 1 over the last 10 s",
        ),
        ([primary(), SMALL], Recent({"gone": 5}), ""),  # a tier that a reload has removed
    ],
)
def test_what_it_costs(rungs: list[Rung], recent: Recent, cost: str) -> None:
    assert standing("chat", rungs, recent).cost == cost


def test_the_cause_is_the_tier_that_is_missing() -> None:
    assert standing("chat", [primary(DOWN, DOWN), SMALL], Recent()).cause == "primary"
    assert standing("chat", [primary(DOWN, DOWN)], Recent()).cause == "primary"
    assert standing("chat", [primary(), SMALL], Recent({"small": 1})).cause == ""
    fallen = Rung("small", 0.6, False, 1, (DOWN,))
    assert standing("chat", [primary(), fallen], Recent()).cause == "small"
    assert standing("chat", [primary(DOWN), fallen], Recent()).cause == ""
    held = replace(primary(), share=0.0, held_because="pinned")
    assert standing("chat", [held, SMALL], Recent()).cause == ""
