"""Who calls, what they may ask for, and how much of it."""

from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from gateway.access import may_look
from gateway.callers import Callers
from gateway.errors import Forbidden, Unauthorized
from gateway.request import Request, parse_request
from gateway.specs import KeySpec

SECRET = "sk-one"


def key(secret: str = SECRET, **more: Any) -> KeySpec:
    return KeySpec(name="one", sha256=sha256(secret.encode()).hexdigest(), **more)


def asking(credential: str = SECRET, **more: Any) -> Request:
    return Request("chat", {}, "chat", "r", 400, credential=credential, **more)


def test_without_keys_anybody_may() -> None:
    request = asking("", priority="critical")
    assert Callers(()).admit(request) is request


@pytest.mark.parametrize("credential", ["", "sk-two", SECRET.upper(), SECRET + " ", key().sha256])
def test_strangers_are_turned_away(credential: str) -> None:
    with pytest.raises(Unauthorized):
        Callers([key()]).admit(asking(credential))


@pytest.mark.parametrize(
    ("asked", "highest", "expected"),
    [
        ("critical", "critical", "critical"),
        ("critical", "standard", "standard"),
        ("critical", "sheddable", "sheddable"),
        ("standard", "critical", "standard"),
        ("sheddable", "standard", "sheddable"),
    ],
)
def test_the_priority_is_never_above_the_keys(asked: Any, highest: Any, expected: str) -> None:
    assert Callers([key(highest_priority=highest)]).admit(asking(priority=asked)).priority == expected


def test_a_key_is_for_its_models() -> None:
    callers = Callers([key(models=("chat",))])
    assert callers.admit(asking()).model == "chat"
    with pytest.raises(Forbidden):
        callers.admit(replace(asking(), model="other"))


def test_a_key_brings_its_tenant_and_its_lowest_tier() -> None:
    admitted = Callers([key(tenant="t", lowest_tier="small")]).admit(asking())
    assert (admitted.tenant, admitted.lowest_tier) == ("t", "small")


def test_a_spent_quota_is_a_refusal_that_says_when() -> None:
    callers = Callers([key(requests_per_minute=1)])
    request = callers.admit(asking())
    assert callers.reserve(request, 1.0) is None
    shed = callers.reserve(request, 1.0)
    assert shed is not None
    assert (shed.reason, shed.retry_after_s) == ("rate_limited", 60.0)


def test_two_keys_of_a_tenant_share_its_quota() -> None:
    two = KeySpec(name="two", tenant="one", sha256=sha256(b"sk-two").hexdigest(), requests_per_minute=1)
    callers = Callers([key(requests_per_minute=1), two])
    assert callers.reserve(callers.admit(asking()), 1.0) is None
    assert callers.reserve(callers.admit(asking("sk-two")), 1.0) is not None


def test_a_reload_does_not_fill_the_quota() -> None:
    before = Callers([key(requests_per_minute=1)])
    assert before.reserve(before.admit(asking()), 1.0) is None
    after = Callers([key(requests_per_minute=1)], before)
    assert after.reserve(after.admit(asking()), 1.0) is not None


def test_tokens_are_settled_by_what_was_used() -> None:
    callers = Callers([key(tokens_per_minute=1000)])
    request = callers.admit(asking())
    assert callers.reserve(request, 1.0) is None
    callers.settle(request, used_tokens=1000)
    assert callers.reserve(request, 1.0) is not None


def test_no_key_shows_in_what_is_printed() -> None:
    body = b'{"model": "chat", "messages": [{"role": "user", "content": "x"}]}'
    request = parse_request("chat", body, {"authorization": f"Bearer {SECRET}"})
    assert request.credential == SECRET
    assert SECRET not in repr(request)
    assert key().sha256 not in repr(key())


def basic(credentials: str) -> str:
    """As a browser sends what its user typed."""
    return f"Basic {b64encode(credentials.encode()).decode()}"


@pytest.mark.parametrize(
    ("authorization", "host", "expected"),
    [
        (None, "10.0.0.1", False),
        ("Bearer sk-two", "10.0.0.1", False),
        (f"Bearer {SECRET}", "10.0.0.1", True),
        ("Bearer admin", "10.0.0.1", True),
        (basic(f"anybody:{SECRET}"), "10.0.0.1", True),
        (basic(":admin"), "10.0.0.1", True),
        (basic("admin:"), "10.0.0.1", False),
        (basic("admin"), "10.0.0.1", False),
        (basic(":sk-two"), "10.0.0.1", False),
        ("Basic admin", "10.0.0.1", False),
        ("Basic \xff", "10.0.0.1", False),
        (None, "127.0.0.1", True),
        (None, "::1", True),
    ],
)
def test_who_may_see_the_status(authorization: str | None, host: str, expected: bool) -> None:
    assert may_look(authorization, host, "admin", Callers([key()])) is expected


def test_without_keys_everybody_may_see_it() -> None:
    assert may_look(None, "10.0.0.1", None, Callers(()))
