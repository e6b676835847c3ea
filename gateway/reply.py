"""How an answer reaches a client, whichever protocol it came by."""

from dataclasses import dataclass
from typing import Protocol

from gateway.policy.decision import Shed


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


class Reply(Protocol):
    """The client's side of one request. Every method may raise `asyncio.CancelledError` when the client has gone."""

    async def begin(self, served: Served) -> None:
        """Starts a streamed answer: status and headers."""
        ...

    async def send(self, frames: bytes) -> None:
        """More of it; returns when the client can take more."""
        ...

    async def end(self) -> None:
        """Ends it."""
        ...

    async def whole(self, served: Served, body: bytes, status: int = 200) -> None:
        """An answer in one piece, or a replica's own refusal of the client's request."""
        ...

    async def refuse(self, shed: Shed, request_id: str) -> None:
        """No answer, before anything was sent."""
        ...
