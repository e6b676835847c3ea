"""Words for what the schema refuses: pydantic's errors as problems with a line, in the operator's terms."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from deploy.yaml_lines import Document, Place, Plain, Problem
from gateway.specs import DATE, NAME, SHA256, WEB_URL

_TYPES = {
    "int_type": "a whole number such as 8",
    "int_from_float": "a whole number such as 8",
    "float_type": "a number such as 0.5",
    "string_type": "text; quote it",
    "bool_type": "true or false",
    "tuple_type": "a list (`- …` lines, or [a, b])",
    "list_type": "a list (`- …` lines, or [a, b])",
    "dict_type": "a mapping (`key: value` lines)",
    "model_type": "a mapping (`key: value` lines)",
}
_PATTERNS = {
    NAME: "Write small letters, digits, - and _, beginning with a letter or digit, at most 63",
    SHA256: "Write what `printf %s KEY | sha256sum` prints: 64 digits and letters from a to f",
    DATE: "Write a date as in 2026-01-31, in quotes",
    WEB_URL: "Write http://HOST:PORT",
}
_BOUNDS = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}


def schema_problems(error: ValidationError, document: Document, root: type[BaseModel]) -> list[Problem]:
    """One problem for each place that the schema refuses; a union's branches count once."""
    seen: dict[Place, ErrorDetails] = {}
    for detail in error.errors(include_url=False):
        seen.setdefault(_written_place(detail, document.data), detail)
    misspelt = {
        (*place[:-1], meant)
        for place, detail in seen.items()
        if detail["type"] == "extra_forbidden" and (meant := _meant(place, root))
    }
    return [
        _problem(detail, place, document, root)
        for place, detail in seen.items()
        if not (detail["type"] == "missing" and place in misspelt)
        and (detail["type"] != "too_short" or not _has_fault_inside(place, seen))
    ]


def _has_fault_inside(place: Place, faults: Iterable[Place]) -> bool:
    """Whether a list only looks too short because pydantic does not count the entries that are wrong."""
    return any(len(other) > len(place) and other[: len(place)] == place for other in faults)


def _problem(detail: ErrorDetails, place: Place, document: Document, root: type[BaseModel]) -> Problem:
    line, name, kind = document.line_of(place), _name(place), detail["type"]
    value, limits = detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(line, place, root)
    if kind == "missing":
        return Problem(line, f"{name} is missing", f"Add `{place[-1]}: …`")
    if value is None and kind in _TYPES:
        return Problem(line, f"{name} has no value", f"Write {_TYPES[kind]}, or remove the key")
    if kind in _TYPES:
        return Problem(line, f"{name} is {_shown(value)}", _type_mend(kind, value, str(place[-1])))
    if kind in _BOUNDS:
        bounds = {key: f"{bound:.15g}" for key, bound in limits.items()}
        return Problem(line, f"{name} is {_shown(value)}", f"Write {_BOUNDS[kind].format(**bounds)}")
    if kind == "literal_error":
        return _not_one_of(line, name, str(value), str(limits["expected"]))
    if kind == "too_short":
        return Problem(line, f"{name} is empty", "Add at least one entry")
    if kind == "string_pattern_mismatch":
        mend = _PATTERNS.get(str(limits["pattern"]), "See the config reference in docs/config.md")
        return Problem(line, f"{name} is {_shown(value)}", mend)
    return Problem(
        line, f"{name} is {_shown(value)}: {detail['msg']}", "See the config reference in docs/config.md"
    )


def _type_mend(kind: str, value: object, key: str) -> str:
    if kind in ("int_type", "float_type") and isinstance(value, str) and value.replace(".", "", 1).isdigit():
        return "Remove the quotes: a number is wanted, not text"
    if kind == "int_type" and key.endswith("_bytes"):
        return "Write it in bytes, such as 1073741824 for 1 GiB"
    return f"Write {_TYPES[kind]}"


def _unknown_key(line: int, place: Place, root: type[BaseModel]) -> Problem:
    key, meant = str(place[-1]), _meant(place, root)
    known = ", ".join(sorted(_keys_at(root, place[:-1])))
    mend = f"Did you mean '{meant}'?" if meant else f"Known here: {known}"
    where = f" in {_name(place[:-1])}" if place[:-1] else ""
    return Problem(line, f"unknown key '{key}'{where}", mend)


def _meant(place: Place, root: type[BaseModel]) -> str:
    """The key that an unknown one looks like; empty when like none."""
    near = get_close_matches(str(place[-1]), sorted(_keys_at(root, place[:-1])), n=1, cutoff=0.6)
    return near[0] if near else ""


def _not_one_of(line: int, name: str, value: str, expected: str) -> Problem:
    choices = expected.replace("'", "").replace(" or ", ", ").split(", ")
    near = get_close_matches(value, choices, n=1, cutoff=0.6)
    mend = f"Did you mean '{near[0]}'? Choices: " if near else "Write one of "
    return Problem(line, f"{name} is '{value}'", mend + ", ".join(choices))


def _written_place(detail: ErrorDetails, data: Plain) -> Place:
    """Where the fault is in the file: pydantic's location without union branches, which no file has."""
    place: list[str | int] = []
    here: Any = data
    for step in detail["loc"]:
        in_mapping = isinstance(here, dict) and step in here
        if not in_mapping and not (isinstance(here, list) and isinstance(step, int)):
            break
        place.append(step)
        here = here[step]
    if detail["type"] == "missing":
        place.append(detail["loc"][-1])
    return tuple(place)


def _keys_at(model: Any, place: Place) -> set[str]:
    """The keys that the schema knows at a place."""
    for step in place:
        if isinstance(model, type) and issubclass(model, BaseModel):
            field = model.model_fields.get(str(step))
            model = field.annotation if field else None
        else:
            model = next((arg for arg in get_args(model) if _is_model(arg)), None)
        model = _inner(model)
    return set(model.model_fields) if _is_model(model) else set()


def _inner(annotation: Any) -> Any:
    """`X | None` is X; anything else is itself."""
    arguments = [arg for arg in get_args(annotation) if arg is not type(None)]
    return arguments[0] if len(arguments) == 1 and type(None) in get_args(annotation) else annotation


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)


def _name(place: Place) -> str:
    """`models.chat.tiers[0].slots`, as people write it."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return f"'{text.removeprefix('.')}'"


def _shown(value: object) -> str:
    kinds: dict[type, str] = {dict: "a mapping", list: "a list", tuple: "a list"}
    shown = kinds.get(type(value)) or (f"'{value}'" if isinstance(value, str) else str(value).lower())
    return shown if len(shown) < 60 else shown[:57] + "…'"
