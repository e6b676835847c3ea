"""A reload takes all of a config that it says it takes: nothing of the one before is left in a gateway that runs."""

import asyncio
import gc
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import FunctionType, ModuleType, UnionType
from typing import Any, get_args

import pytest
from annotated_types import Ge, Gt, Le

from deploy.config import Config
from deploy.config_restart import RELOAD
from gateway.app import Gateway
from gateway.specs import Spec
from tests.integration.client import Question, ask
from tests.integration.conftest import Engines
from tests.integration.rig import Json, canned, serving, tier

pytestmark = pytest.mark.asyncio(loop_scope="session")


def marked(salt: int) -> tuple[Json, dict[str, object]]:
    """A config's sections with a number that stands nowhere else for every number that a reload takes, and the numbers."""
    sections: Json = {}
    marks: dict[str, object] = {}
    places = count(1)
    for name, field in Config.model_fields.items():
        if name != "server" and isinstance(section := field.default, Spec):
            for key, inner in type(section).model_fields.items():
                if f"{name}.{key}" in RELOAD and (mark := _mark(inner, next(places), salt)) is not None:
                    sections.setdefault(name, {})[key] = marks[f"{name}.{key}"] = mark
        elif name in RELOAD and (mark := _mark(field, next(places), salt)) is not None:
            sections[name] = marks[name] = mark
    sections["routing"]["zone"] = marks["routing.zone"] = f"zone-{salt}"
    return sections, marks


def _mark(field: Any, place: int, salt: int) -> int | float | None:
    """Within the bounds of every number: shares are below 1, and whole numbers have no upper end."""
    annotation = field.annotation
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    if float in kinds:
        is_share = any(isinstance(bound, Le) for bound in _bounds(field))
        return round((0.5 if is_share else 40.0) + salt / 1e3 + place / 1e6 + 3e-8, 8)
    return 7_000_003 * (place + 100 * salt) if int in kinds and bool not in kinds else None


def _bounds(field: Any) -> Iterator[object]:
    yield from (bound for bound in field.metadata if isinstance(bound, Ge | Gt | Le))


def held_by(gateway: Gateway) -> Iterator[object]:
    """Everything that can be reached from it, without modules and the loop."""
    seen: set[int] = set()
    left: list[Any] = [gateway]
    while left:
        held = left.pop()
        # A Config is what the file's next one is compared with; what a task sleeps now it will not sleep again.
        is_out = isinstance(held, type | ModuleType | Config | asyncio.AbstractEventLoop | asyncio.Future)
        if id(held) in seen or is_out:
            continue
        seen.add(id(held))
        yield held
        if isinstance(held, FunctionType):
            left += [cell.cell_contents for cell in held.__closure__ or () if cell != _EMPTY]
        elif not (isinstance(held, dict) and "__builtins__" in held):
            left += gc.get_referents(held)


_EMPTY = type((lambda x: lambda: x)(0).__closure__[0])()  # type: ignore[index]


def ladder(engines: Engines, **more: Any) -> list[Json]:
    return [tier("primary", *engines.primary, **more), canned()]


async def test_nothing_of_the_config_before_is_left(engines: Engines, config: Path) -> None:
    (before, old), (after, new) = marked(1), marked(2)
    assert len(old) > 25
    assert not set(map(repr, old.values())) & set(map(repr, new.values()))
    async with serving(config, *ladder(engines), **before) as gateway:
        assert (await ask(gateway.url, Question(tokens=3))).status == 200
        await gateway.reload(*ladder(engines), **after)
        held = {value for value in held_by(gateway.gateway) if type(value) in (int, float, str)}
    assert {key for key, mark in old.items() if mark in held} == set()
    assert {key for key, mark in new.items() if mark not in held} == set()


async def test_how_places_are_learnt_follows_the_config(engines: Engines, config: Path) -> None:
    places = []
    async with serving(config, *ladder(engines, slots=None)) as gateway:
        for limit in ("aimd", "none", "gradient"):
            await gateway.reload(*ladder(engines, slots=None, limit=limit))
            places.append({replica["slots"] for replica in (await gateway.replicas()).values()})
    assert places == [{32}, {None}, {32}]
