"""Atomic steps on one entry of the store: a Lua script where that is Redis, and the same in Python for memory.

An entry is a small map of fields that only its own scripts touch. A script sees its fields and arguments, may change
the fields, and returns a list of byte strings; nothing else runs on the entry meanwhile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Literal

Fields = dict[bytes, bytes]
Kept = Literal["stored", "replicated", "unconfirmed"]
"""Where a change is: in the store, which has no replicas to wait for; on as many replicas as wanted, too; or on a server
that could not confirm that in time, so that the change is gone if another server is the master, or becomes it."""


@dataclass(frozen=True, slots=True)
class Script:
    """One step, twice. `lua` finds the entry's hash at KEYS[1] and the arguments in ARGV; it sets no expiry."""

    name: str
    lua: str
    python: Callable[[Fields, Sequence[bytes]], list[bytes]]

    @property
    def sha(self) -> str:
        """The name that Redis gives it."""
        return sha1(self.lua.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class Ran:
    """What a script returned, and where its change is."""

    values: list[bytes]
    kept: Kept = "stored"
