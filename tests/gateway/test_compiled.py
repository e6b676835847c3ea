"""The compiled hot path and the plain one: the same sources, the same answers."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.compiled import ROOT, SOURCES, folder_for
from scripts.native_constructors import with_constructors

ANSWERS = "tests.gateway.answers_of_the_hot_path"


def answers(*, is_plain: bool) -> str:
    """What a fresh process says; its first line is where the journal was loaded from."""
    env = {**os.environ, "GRACEWAY_PLAIN": "1" if is_plain else "0"}
    ran = subprocess.run(
        [sys.executable, "-m", ANSWERS], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    return ran.stdout


def test_compiled_and_plain_say_the_same() -> None:
    if not folder_for().is_dir():
        pytest.skip("these sources are not compiled: see scripts/compile_hot_path.py")
    plain, compiled = (answers(is_plain=is_plain).partition("\n") for is_plain in (True, False))
    assert (Path(plain[0]).suffix, Path(compiled[0]).suffix) == (".py", ".so")
    assert compiled[2] == plain[2]


def test_no_plain_class_derives_from_a_compiled_one() -> None:
    """mypyc refuses an object of such a class where one of its base is wanted."""
    trees = {str(p.relative_to(ROOT)): ast.parse(p.read_text()) for p in (ROOT / "gateway").rglob("*.py")}
    classes = [
        (path, n) for path, tree in trees.items() for n in ast.walk(tree) if isinstance(n, ast.ClassDef)
    ]
    compiled = {node.name for path, node in classes if path in SOURCES}
    plain = [
        (node.name, ast.unparse(base)) for path, node in classes if path not in SOURCES for base in node.bases
    ]
    assert [pair for pair in plain if pair[1] in compiled] == []


def test_no_attribute_is_read_where_it_was_set_to_none() -> None:
    """mypy believes that it stays None, whatever is called or awaited in between, and mypyc raises when it does not."""
    found = []
    for source in SOURCES:
        for function in ast.walk(ast.parse((ROOT / source).read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                found += [f"{source}: {name} in {function.name}" for name in _read_after_none(function)]
    assert found == []


def _read_after_none(function: ast.AST) -> list[str]:
    set_at: dict[str, int] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target, value in _pairs(node):
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(value, ast.Constant)
                    and value.value is None
                ):
                    set_at[ast.unparse(target)] = node.end_lineno or node.lineno
    return [
        ast.unparse(node)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and node.lineno > set_at.get(ast.unparse(node), node.lineno)
    ]


def _pairs(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """What is assigned to what."""
    pairs = []
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs += list(zip(target.elts, node.value.elts, strict=True))
        else:
            pairs.append((target, node.value))
    return pairs


SAMPLE = '''\
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Stone:
    weight_g: int
    name: str = field(default="pebble", repr=False)
    veins: list[str] = field(default_factory=lambda: ["quartz"], compare=False)


@dataclass(slots=True, eq=False)
class Pile:
    """Of stones."""

    stones: tuple[Stone, ...] = ()
    is_high: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_high = len(self.stones) > 1


def seen() -> list[object]:
    one, other = Stone(3), Stone(weight_g=3, veins=["ore"])
    piles = Pile((one, other)), Pile()
    heavy = replace(other, weight_g=5)
    own_lists = one.veins is not Stone(3).veins
    same = one == other, hash(one) == hash(other), piles[0] == Pile((one, other)), own_lists
    return [repr(one), repr(heavy), heavy.name, [p.is_high for p in piles], same]
'''


def test_a_constructor_in_the_source_does_what_the_generated_one_does() -> None:
    plain: dict[str, Any] = {"__name__": __name__}
    written: dict[str, Any] = {"__name__": __name__}
    exec(SAMPLE, plain)
    exec(with_constructors(SAMPLE), written)
    assert written["seen"]() == plain["seen"]()
    assert "__init__" in with_constructors(SAMPLE)


def test_constructors_move_no_line() -> None:
    for source in SOURCES:
        text = (ROOT / source).read_text()
        changed = zip(text.split("\n"), with_constructors(text).split("\n"), strict=True)
        assert {old.strip()[:11] for old, new in changed if old != new} <= {"", "@dataclass("}, source


def test_every_dataclass_of_the_hot_path_gets_one() -> None:
    for source in SOURCES:
        text = (ROOT / source).read_text()
        assert with_constructors(text).count(" -> None: self.") == text.count("@dataclass("), source


def test_edited_sources_are_never_shadowed(tmp_path: Path) -> None:
    for source in SOURCES:
        (tmp_path / source).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / source).write_bytes((ROOT / source).read_bytes())
    assert folder_for(tmp_path).name == folder_for().name
    with (tmp_path / SOURCES[-1]).open("a") as edited:
        edited.write("\n")
    assert folder_for(tmp_path).name != folder_for().name
