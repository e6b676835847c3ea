"""An answer that no engine generates now, and the protocol of those who have one."""

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer. `model` names what generated it; `age_s` says how long ago."""

    text: str
    model: str
    finish_reason: str = "stop"
    age_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Answerer(Protocol):
    """A tier that the gateway serves by itself."""

    async def answer(self, model: str, kind: str, body: dict[str, Any]) -> Answer | None:
        """The answer to a request (`kind` is chat or text, `body` the client's JSON), or None for a miss."""
        ...
