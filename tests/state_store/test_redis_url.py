"""What a Redis URL says, as tables of literals."""

import re

import pytest

from state_store.redis_url import RedisUrl, Server, parse_redis_url

SAID = {
    "redis://h": RedisUrl("single", (Server("h", 6379),)),
    "redis://h:1/3": RedisUrl("single", (Server("h", 1),), login={"db": 3}),
    "redis://u:p%40ss@h:1": RedisUrl(
        "single", (Server("h", 1),), login={"username": "u", "password": "p@ss"}
    ),
    "redis://:p@[::1]:2": RedisUrl("single", (Server("::1", 2),), login={"password": "p"}),
    "unix:///run/r.sock?db=2": RedisUrl("single", (Server(path="/run/r.sock"),), login={"db": 2}),
    "rediss://h?ca=/ca.pem": RedisUrl(
        "single",
        (Server("h", 6379),),
        login={"ssl": True, "ssl_ca_certs": "/ca.pem"},
        sentinel_login={"ssl": True, "ssl_ca_certs": "/ca.pem"},
    ),
    "redis+sentinel://u:p@a:1,b/state?db=1&sentinel_user=s&sentinel_password=q&wait_replicas=1": RedisUrl(
        "sentinel",
        (Server("a", 1), Server("b", 26379)),
        "state",
        {"username": "u", "password": "p", "db": 1},
        {"username": "s", "password": "q"},
        wait_replicas=1,
    ),
    "redis+sentinel://a:1/state": RedisUrl("sentinel", (Server("a", 1),), "state", wait_replicas=1),
    "redis+sentinel://a:1/state?wait_replicas=0": RedisUrl("sentinel", (Server("a", 1),), "state"),
    "redis+cluster://a:1,b:2?timeout_ms=20": RedisUrl(
        "cluster", (Server("a", 1), Server("b", 2)), timeout_s=0.02
    ),
}


@pytest.mark.parametrize(("url", "said"), SAID.items(), ids=SAID)
def test_what_it_says(url: str, said: RedisUrl) -> None:
    assert parse_redis_url(url) == said


WRONG = {
    "postgres://h": "is none of redis://",
    "redis://": "host is missing",
    "redis://h:1,": "host is missing",
    "redis://h:x": "port is a number up to 65535",
    "redis://h:99999": "port is a number up to 65535",
    "redis://a..b:1": "the host is no name",
    f"redis+cluster://a:1,{'b' * 64}:1": "the host is no name",
    "unix://": "path is missing",
    "redis://h/nine": "db is a number",
    "redis://h?color=red": "no option 'color'",
    "redis://h?ca=/ca.pem": "write rediss://",
    "redis://h?tls=perhaps": "true or false",
    "redis://h?timeout_ms=0": "above 0",
    "redis+sentinel://h:1": "name of the master",
    "redis+cluster://h:1/2": "no databases",
}


@pytest.mark.parametrize(("url", "why"), WRONG.items(), ids=WRONG)
def test_what_is_wrong(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_redis_url(url)


@pytest.mark.parametrize("password", ["hu/sh", "hush/x", "hu#sh", "hush?x", "h:ush?"])
def test_a_password_that_should_be_encoded_is_in_no_error_which_says_how(password: str) -> None:
    with pytest.raises(ValueError, match="in a password, write / as %2F") as error:
        parse_redis_url(f"redis://user:{password}@h:1")
    assert not re.search("ush|sh@", str(error.value))


def test_a_password_is_in_no_repr() -> None:
    assert "hush" not in repr(parse_redis_url("redis+sentinel://u:hush@h:1/m?sentinel_password=hush"))


ADDRESSES = {
    "redis://h": "redis://h:6379",
    "redis://u:hush@h:1/3": "redis://h:1/3",
    "redis://:hush@[::1]:2": "redis://[::1]:2",
    "unix:///run/r.sock?db=2": "unix:///run/r.sock",
    "rediss://:hush@h?ca=/ca.pem": "rediss://h:6379",
    "redis+sentinel://u:hush@a:1,b/state?sentinel_user=s&sentinel_password=hush": "redis+sentinel://a:1,b:26379/state",
    "rediss+cluster://u:hush@a:1,b:2?timeout_ms=20": "rediss+cluster://a:1,b:2",
}


@pytest.mark.parametrize(("url", "address"), ADDRESSES.items(), ids=ADDRESSES)
def test_what_everybody_may_see_of_it(url: str, address: str) -> None:
    assert parse_redis_url(url).address == address
