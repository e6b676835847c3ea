"""Writes out what `@dataclass` would generate, for mypyc: the constructors of the compiled hot path.

A generated `__init__` is interpreted, whatever its class is compiled to, and a frozen one sets each field through
`object.__setattr__`: together a tenth of a request. One that stands in the source is compiled like any other function.
mypyc sees to it that nobody sets a frozen field, as mypy does; so nothing has to at run time.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass


def with_constructors(source: str) -> str:
    """The module with an `__init__` in each plain dataclass. No line of it moves: each takes the place of an empty one."""
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and (decorator := _decorator(node)) is not None:
            fields = list(_fields(node, source))
            end = node.end_lineno or 0
            if _is_plain(node) and fields and lines[end : end + 1] == [""]:
                lines[end] = _constructor(node, fields)
                lines[decorator.lineno - 1] = _decoration(node, decorator)
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    type: str
    default: str = ""
    factory: str = ""

    @property
    def parameter(self) -> str:
        if self.factory:
            return f"{self.name}: {self.type} | None = None"
        return f"{self.name}: {self.type} = {self.default}" if self.default else f"{self.name}: {self.type}"

    @property
    def assignment(self) -> str:
        value = f"{self.factory}() if {self.name} is None else {self.name}" if self.factory else self.name
        return f"self.{self.name} = {value}"


def _decorator(node: ast.ClassDef) -> ast.Call | None:
    calls = (d for d in node.decorator_list if isinstance(d, ast.Call))
    return next((d for d in calls if isinstance(d.func, ast.Name) and d.func.id == "dataclass"), None)


def _is_plain(node: ast.ClassDef) -> bool:
    return not node.bases and not any(
        isinstance(s, ast.FunctionDef) and s.name == "__init__" for s in node.body
    )


def _fields(node: ast.ClassDef, source: str) -> Iterator[_Field]:
    """Those that the constructor takes, in order."""
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name, type_, value = statement.target.id, ast.unparse(statement.annotation), statement.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "field":
            given = {k.arg: ast.unparse(k.value) for k in value.keywords}
            if given.get("init") != "False":
                factory = given.get("default_factory", "")
                yield _Field(name, type_, given.get("default", ""), f"({factory})" if factory else "")
        else:
            yield _Field(name, type_, "" if value is None else ast.unparse(value))


def _constructor(node: ast.ClassDef, fields: list[_Field]) -> str:
    parameters = ", ".join(field.parameter for field in fields)
    steps = [field.assignment for field in fields]
    if any(isinstance(s, ast.FunctionDef) and s.name == "__post_init__" for s in node.body):
        steps.append("self.__post_init__()")
    return f"{' ' * (node.col_offset + 4)}def __init__(self, {parameters}) -> None: {'; '.join(steps)}"


def _decoration(node: ast.ClassDef, decorator: ast.Call) -> str:
    """The decorator, without what the constructor now does. What can't be set keeps its hash."""
    given = {k.arg: ast.unparse(k.value) for k in decorator.keywords}
    is_hashed = given.pop("frozen", "False") == "True" and given.get("eq") != "False"
    given |= {"init": "False"} | ({"unsafe_hash": "True"} if is_hashed else {})
    return f"{' ' * node.col_offset}@dataclass({', '.join(f'{k}={v}' for k, v in given.items())})"
