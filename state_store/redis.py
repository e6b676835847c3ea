"""The Redis backend: a few kinds of keys, and no call that can outlast its timeout.

A value lives under `graceway:{group}:key` with Redis's own expiry, which alone decides whether it is alive.
The sorted set `graceway:{group}` lists a group's keys for `scan`; the braces are Redis's hash tag and keep a
group in one slot. Its scores only bound its size: they are the time after which an entry is garbage on any
clock, however wrong. The entry of a script is a hash under `graceway:{group|key}`, a topic a stream under
`graceway:{topic}|log`: each in a slot of its own, so that sessions spread over a Cluster.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import AskError, MovedError, NoScriptError, RedisError

from state_store.patience import within
from state_store.protocol import StateStoreUnavailable
from state_store.redis_servers import Servers, servers_of
from state_store.redis_url import RedisUrl, Server, parse_redis_url
from state_store.script import Kept, Ran, Script

_CLOCK_SKEW_S = 3600.0
Command = tuple[Any, ...]


class RedisStateStore:
    """A store on one Redis server, behind Sentinels or in a Cluster. Connects at the first call."""

    def __init__(
        self,
        url: str | RedisUrl,
        *,
        timeout_s: float | None = None,
        servers: Servers | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        at = parse_redis_url(url) if isinstance(url, str) else url
        self.address = at.address
        """Where it is, without a password."""
        self._timeout_s = at.timeout_s if timeout_s is None else timeout_s
        self._wait_replicas = at.wait_replicas
        self._servers = servers or servers_of(at, self._timeout_s)
        self._now = now

    async def get(self, group: str, key: str) -> bytes | None:
        value: bytes | None = (await self._call(value_key(group, key), ("GET", value_key(group, key))))[0]
        return value

    async def put(
        self, group: str, key: str, value: bytes, *, ttl_s: float, only_if_absent: bool = False
    ) -> bool:
        now, ttl_ms = self._now(), max(1, round(ttl_s * 1000))
        index, place = _index_key(group), value_key(group, key)
        only = ("NX",) if only_if_absent else ()
        done = await self._call(
            place,
            ("SET", place, value, "PX", ttl_ms, *only),
            ("ZADD", index, "GT", now + ttl_s + _CLOCK_SKEW_S, key),
            ("ZREMRANGEBYSCORE", index, "-inf", now),
        )
        return bool(done[0])

    async def delete(self, group: str, key: str) -> None:
        place = value_key(group, key)
        await self._call(place, ("DEL", place), ("ZREM", _index_key(group), key))

    async def scan(self, group: str) -> dict[str, bytes]:
        index = _index_key(group)
        members: list[bytes] = (await self._call(index, ("ZRANGE", index, 0, -1)))[0]
        if not members:
            return {}
        keys = [member.decode() for member in members]
        values = (await self._call(index, ("MGET", *(value_key(group, key) for key in keys))))[0]
        return {key: value for key, value in zip(keys, values, strict=True) if value is not None}

    async def run(
        self, script: Script, group: str, key: str, arguments: Sequence[bytes | str], *, ttl_s: float
    ) -> Ran:
        entry = _entry_key(group, key)
        more: list[Command] = [("PEXPIRE", entry, max(1, round(ttl_s * 1000)))]
        if self._wait_replicas:
            # A third of the time there is: an answer without the replicas is an answer all the same, also where the
            # script was not loaded yet and all is asked twice.
            more.append(("WAIT", self._wait_replicas, max(1, round(self._timeout_s * 333))))
        try:
            done = await self._call(entry, ("EVALSHA", script.sha, 1, entry, *arguments), *more)
        except _NotLoaded:
            done = await self._call(entry, ("EVAL", script.lua, 1, entry, *arguments), *more)
        _must_be_a_list(done[0])
        kept = self._kept(done[-1]) if self._wait_replicas else "stored"
        if kept == "unconfirmed":
            self._servers.doubted()
        return Ran([v if isinstance(v, bytes) else b"%d" % v for v in done[0]], kept)

    def _kept(self, confirmed: Any) -> Kept:
        return "replicated" if confirmed >= self._wait_replicas else "unconfirmed"

    async def append(self, topic: str, value: bytes, *, max_values: int) -> str:
        key = _topic_key(topic)
        done = await self._call(key, ("XADD", key, "MAXLEN", "~", max_values, "*", "v", value))
        return str(done[0].decode())

    async def read(self, topic: str, after: str = "") -> list[tuple[str, bytes]]:
        key = _topic_key(topic)
        found = (await self._call(key, ("XRANGE", key, f"({after}" if after else "-", "+", "COUNT", 1000)))[0]
        _must_be_a_list(found)
        return [(number.decode(), fields[1]) for number, fields in found]

    def place_of(self, group: str, key: str) -> str:
        """Where an entry or a group's values are: what fails together has the same name."""
        return self._servers.place_of(_entry_key(group, key) if key else _index_key(group))

    async def probe(self, group: str, key: str) -> None:
        """Writes something at this place. Raises StateStoreUnavailable when it does not take it."""
        tag = f"{group}|{key}" if key else group
        probe = f"graceway:{{{tag}}}|probe"
        await self._call(probe, ("SET", probe, b"", "PX", 1000))

    async def close(self) -> None:
        await self._servers.close()

    async def _call(self, key: str, *commands: Command) -> list[Any]:
        """Sends the commands, which are all about this key's slot, to the server that has it.

        Raises:
            StateStoreUnavailable, _NotLoaded
        """
        verb = commands[0][0]
        try:
            async with within(self._timeout_s):
                return await self._at_its_server(key, commands)
        except TimeoutError as error:
            self._servers.failed(key)
            raise StateStoreUnavailable(
                f"{verb}: no answer within {self._timeout_s * 1000:.0f} ms"
            ) from error
        except (RedisError, OSError, ValueError) as error:
            # A ValueError is what the client makes of an answer that is none of the protocol's.
            if isinstance(error, NoScriptError):
                raise _NotLoaded from error
            self._servers.failed(key)
            raise StateStoreUnavailable(f"{verb}: {error}") from error

    async def _at_its_server(self, key: str, commands: Sequence[Command]) -> list[Any]:
        try:
            return await _sent(await self._servers.client(key), commands)
        except MovedError as moved:
            self._servers.failed(key, Server(str(moved.host), int(moved.port)))
            return await _sent(await self._servers.client(key), commands)
        except AskError as asked:
            # On its way to another node: there for this once, the rest of the slot is still here.
            there = self._servers.client_at(Server(str(asked.host), int(asked.port)))
            return (await _sent(there, [word for command in commands for word in (("ASKING",), command)]))[
                1::2
            ]


def _must_be_a_list(answer: Any) -> None:
    if not isinstance(answer, list):
        raise StateStoreUnavailable("it answers what no Redis would")


class _NotLoaded(Exception):  # noqa: N818
    """The server does not know the script yet."""


async def _sent(client: Any, commands: Sequence[Command]) -> list[Any]:
    """The answers; raises the first that is an error."""
    if len(commands) == 1:
        return [await client.execute_command(*commands[0])]
    async with client.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command)
        done: list[Any] = await pipe.execute(raise_on_error=False)
    for answer in done:
        if isinstance(answer, RedisError):
            raise answer
    return done


def _index_key(group: str) -> str:
    return f"graceway:{{{group}}}"


def value_key(group: str, key: str) -> str:
    """Where a group's value lies in Redis, for those that don't go through the store."""
    return f"graceway:{{{group}}}:{key}"


def _entry_key(group: str, key: str) -> str:
    return f"graceway:{{{group}|{key}}}"


def _topic_key(topic: str) -> str:
    return f"graceway:{{{topic}}}|log"
