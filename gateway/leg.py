"""One attempt's request to a replica, and how its answer joins what was said before it."""

from dataclasses import dataclass
from typing import Any

import orjson

from gateway.stop import StopMatcher

Json = dict[str, Any]


@dataclass(slots=True)
class Leg:
    """One attempt's part of the answer."""

    path: str
    body: Json
    is_continuation: bool = False
    asked_ids: bool = False
    """Whether the gateway, not the client, asked for token ids."""
    asked_usage: bool = False
    is_splice: bool = False
    """Whether another tier goes on, so that the seam must show."""
    given_up: str = ""
    """What another tier, which goes on with the answer, leaves out of the request."""
    stop: StopMatcher | None = None
    base_tokens: int = 0
    """Tokens of the answer before this leg."""

    def encoded(self) -> bytes:
        return orjson.dumps(self.body)
