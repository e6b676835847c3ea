"""How an answer reaches a client, whichever protocol it came by."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

from gateway.policy.decision import Shed
from gateway.turn import NO_TURN, Turn


@dataclass(frozen=True, slots=True)
class Served:
    """What every answer discloses: the tier, the replica (empty: the gateway itself), and the reason for less than the best."""

    tier: str
    replica: str
    degraded: str
    request_id: str
    age_s: float | None = None
    """How old a cached answer is."""
    traceparent: str = ""
    given_up: str = ""
    """What a lower tier left out of the request."""
    turn: Turn = NO_TURN
    """Of the session."""
    kv_durability: str = ""
    """What outlives the replica of this turn: the tier's way of keeping KV blocks, or that it could not be confirmed."""


class Reply(Protocol):
    """The client's side of one request. Awaiting may raise `asyncio.CancelledError` when the client has gone."""

    def push(self, served: Served, frames: bytes) -> Awaitable[None] | None:
        """More of a streamed answer; the first call begins it, with status and headers.

        Returns None when the client can take more at once, else what to await before pushing again.
        """
        ...

    async def end(self) -> None:
        """Ends a streamed answer."""
        ...

    async def whole(self, served: Served, body: bytes, status: int = 200) -> None:
        """An answer in one piece, or a replica's own refusal of the client's request."""
        ...

    async def refuse(self, shed: Shed, request_id: str) -> None:
        """No answer, before anything was sent."""
        ...
