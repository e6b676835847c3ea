"""The `StateStore` protocol: four verbs over expiring byte values in named groups.

Everything that Graceway shares between processes is a small value that its writer renews and that may be
lost: a replica's lease, a session's binding, a breaker's gossip, a cached answer. So the store promises
little, and every backend can keep the promise; `tests/contract/test_state_store.py` runs one suite over all
of them.
"""

from typing import Protocol


class StateStoreUnavailable(Exception):  # noqa: N818 - a condition that callers plan for, not a programming error
    """The store did not answer in time, or refused. Verbs of every backend raise this and nothing else."""


class StateStore(Protocol):
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

    async def close(self) -> None:
        """Releases connections; the store can't be used afterwards."""
        ...
