"""The `StateStore` protocol: expiring byte values in named groups, scripts on entries, and topics that are read in order.

Everything that Graceway shares between processes is a small value that its writer renews and that may be
lost: a replica's lease, a session's binding, a breaker's gossip, a cached answer. So the store promises
little, and every backend can keep the promise; `tests/contract/test_state_store.py` runs one suite over all
of them.
"""

from collections.abc import Sequence
from typing import Protocol

from state_store.script import Ran, Script


class StateStoreUnavailable(Exception):  # noqa: N818 - a condition that callers plan for, not a programming error
    """The store did not answer in time, or refused. Verbs of every backend raise this and nothing else."""


class Values(Protocol):
    """Expiring values by group and key. A group is a flat namespace such as `replicas` or `sessions:chat`."""

    async def get(self, group: str, key: str) -> bytes | None:
        """The value, or None when it was never put, was deleted or has expired."""
        ...

    async def put(
        self, group: str, key: str, value: bytes, *, ttl_s: float, only_if_absent: bool = False
    ) -> bool:
        """Stores `value` for `ttl_s` (> 0). False when `only_if_absent` and a live value was there."""
        ...

    async def delete(self, group: str, key: str) -> None:
        """Forgets the value; fine when there is none."""
        ...

    async def scan(self, group: str) -> dict[str, bytes]:
        """All live values of a group by key. For small groups (replicas, breakers), not for sessions."""
        ...


class Entries(Protocol):
    """Small maps that only scripts touch, one atomic step at a time."""

    async def run(
        self, script: Script, group: str, key: str, arguments: Sequence[bytes | str], *, ttl_s: float
    ) -> Ran:
        """Runs a script on an entry, which then lives for another `ttl_s`."""
        ...


class Topics(Protocol):
    """What many write and many read: bounded, in one order for all."""

    async def append(self, topic: str, value: bytes, *, max_values: int) -> str:
        """Adds a value behind all others, and returns its place; of more than about `max_values` the oldest go."""
        ...

    async def read(self, topic: str, after: str = "") -> list[tuple[str, bytes]]:
        """The next values behind a place, a thousand at most, each with its own; from the beginning without one."""
        ...


class StateStore(Values, Entries, Topics, Protocol):
    """All that processes share."""

    async def close(self) -> None:
        """Releases connections; the store can't be used afterwards."""
        ...
