"""What is asked of a tier that the gateway serves by itself, and an answer that no engine generates now."""

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as such a tier sees it: `kind` is chat or text, `body` the client's JSON."""

    model: str
    kind: str
    body: dict[str, Any]
    tenant: str = ""
    """Whose answers may be given; empty where callers have no keys."""
    languages: str = ""
    """The caller's Accept-Language."""
    within_s: float = 5.0
    """What is left of its deadline."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer. `model` names what generated it; `age_s` says how long ago."""

    text: str
    model: str
    finish_reason: str = "stop"
    age_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    similarity: float | None = None
    """Of the question that it was given to, where that is another one than was asked."""


class Answerer(Protocol):
    """A tier that the gateway serves by itself."""

    async def answer(self, asked: Asked) -> Answer | None:
        """The answer, or None for a miss."""
        ...
