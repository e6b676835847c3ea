"""The last rung: a fixed text."""

from dataclasses import dataclass
from typing import Any

from fallback_models.answer import Answer


@dataclass(frozen=True, slots=True)
class CannedText:
    """Answers everything with `text`, and says so: the model is named `canned`."""

    text: str

    async def answer(self, model: str, kind: str, body: dict[str, Any]) -> Answer:
        return Answer(self.text, model="canned")
