"""Who may administer a gateway."""

import pytest

from gateway.access import may_administer

TABLE = [
    # (authorization, host, key) → may
    (None, "127.0.0.1", None, True),
    (None, "127.8.9.1", None, True),
    (None, "::1", None, True),
    (None, "10.0.0.1", None, False),
    (None, "", None, False),
    (None, "localhost", None, False),  # a name proves nothing
    ("Bearer k", "10.0.0.1", None, False),
    ("Bearer k", "10.0.0.1", "k", True),
    ("bearer  k ", "10.0.0.1", "k", True),
    ("Bearer K", "10.0.0.1", "k", False),
    ("Bearer kk", "10.0.0.1", "k", False),
    ("Bearer ", "10.0.0.1", "k", False),
    ("Basic k", "10.0.0.1", "k", False),
    ("Basic Oms=", "10.0.0.1", "k", False),  # a browser sends it whoever made it ask
    ("k", "10.0.0.1", "k", False),
    (None, "127.0.0.1", "k", False),  # with a key, loopback is not enough
    ("Bearer schlüssel", "10.0.0.1", "schlüssel", True),
]


@pytest.mark.parametrize(("authorization", "host", "key", "expected"), TABLE)
def test_table(authorization: str | None, host: str, key: str | None, expected: bool) -> None:
    assert may_administer(authorization, host, key) is expected
