"""The last rung: a fixed text, in the caller's language where there is one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fallback_models.answer import Answer, Asked


@dataclass(frozen=True, slots=True)
class CannedText:
    """Answers everything with a text, and says so: the model is named `canned`."""

    text: str
    """For whoever names no language that there is a text in."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """By language, as in `de` or `de-ch`; in lower case."""
    language_field: str = ""
    """The request's field that names its language, with dots for fields inside; asked before Accept-Language."""

    async def answer(self, asked: Asked) -> Answer:
        return Answer(self._text(asked) if self.texts else self.text, model="canned")

    def _text(self, asked: Asked) -> str:
        wanted = _field(asked.body, self.language_field)
        for language in [*([wanted] if wanted else []), *accepted(asked.languages)]:
            for name in _wider(language):
                if name in self.texts:
                    return self.texts[name]
        return self.text


def accepted(header: str) -> list[str]:
    """The languages of an Accept-Language, best first; those that are refused (`q=0`) are not among them."""
    found = []
    for place, part in enumerate(header.lower().split(",")[:32]):
        name, _, weight = part.partition(";")
        q = _weight(weight)
        if name.strip() and q > 0:
            found.append((-q, place, name.strip()))
    return [name for _, _, name in sorted(found)]


def _weight(parameter: str) -> float:
    name, _, value = parameter.strip().partition("=")
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 0.0


def _wider(language: str) -> Iterator[str]:
    """`zh-hant-tw`, `zh-hant`, `zh`."""
    parts = language.lower().replace("_", "-").split("-")
    for count in range(len(parts), 0, -1):
        yield "-".join(parts[:count])


def _field(body: Mapping[str, Any], path: str) -> str:
    value: Any = body
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else ""
