"""URLs of servers, and what they are refused for."""

import pytest

from state_store.kv.address import Address, parse_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://cache", Address("cache", 6379)),
        ("redis://:p%40ss@10.0.0.1:7000/3", Address("10.0.0.1", 7000, db=3, password="p@ss")),
        ("rediss://kv:secret@cache:6380", Address("cache", 6380, username="kv", password="secret", tls=True)),
        ("rediss://c?ssl_ca_certs=/ca.pem", Address("c", 6379, tls=True, ca_file="/ca.pem")),
        ("unix:///run/redis.sock", Address(path="/run/redis.sock")),
        ("unix://:pw@/run/redis.sock?db=2", Address(path="/run/redis.sock", db=2, password="pw")),
    ],
)
def test_urls(url: str, address: Address) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize("url", ["memory", "redis+cluster://a", "redis+sentinel://a", "http://a"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="KV blocks can't be kept"):
        parse_address(url)


def test_a_password_is_in_no_representation() -> None:
    assert "secret" not in repr(parse_address("redis://:secret@cache"))
