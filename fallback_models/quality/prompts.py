"""The prompt set that ships: open questions, and questions with one right answer."""

import json
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class ExactItem:
    """A question with its right answers, any of which will do."""

    prompt: str
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PromptSet:
    open: tuple[str, ...]
    exact: tuple[ExactItem, ...]

    def first(self, count: int) -> "PromptSet":
        """At most so many of each kind."""
        return PromptSet(self.open[:count], self.exact[:count])


def load_prompts() -> PromptSet:
    raw = json.loads(files("fallback_models.quality").joinpath("prompts.json").read_text(encoding="utf-8"))
    exact = tuple(ExactItem(item["prompt"], tuple(item["answers"])) for item in raw["exact"])
    return PromptSet(tuple(raw["open"]), exact)
