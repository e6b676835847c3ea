"""Reads YAML into plain data that still knows its lines, with every fault named rather than only the first.

Owns what YAML itself can get wrong: a file that is not there, syntax, keys written twice, `${VAR}` without a
value. What the keys mean is the schema's business.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"
Place: TypeAlias = "tuple[str | int, ...]"
"""The way from the document's root to a value: keys and list positions."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_OPENING_OF_VARIABLE = re.compile(r"\$\{(?![A-Za-z_][A-Za-z0-9_]*\})")
_SCALARS = ("null", "bool", "int", "float", "str")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong at a line (1-based; 0 where a line makes no sense), and how to mend it."""

    line: int
    what: str
    mend: str

    def at(self, file: str) -> str:
        place = f"{file}:{self.line}" if self.line else file
        return f"{place}: {self.what}. {self.mend}"


@dataclass
class Document:
    """Plain data, the line of every place in it, and what was wrong with the YAML."""

    data: Plain = None
    lines: dict[Place, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line_of(self, place: Place) -> int:
        """The line of `place`, or of the nearest thing around it that is written in the file."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)


def read_document(path: Path, environment: Mapping[str, str]) -> Document:
    """The file's content. Never raises for what the file holds: see `Document.problems`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return Document(problems=[_unreadable(path, error)])
    return parse_document(text, environment)


def parse_document(text: str, environment: Mapping[str, str]) -> Document:
    document = Document()
    yaml = YAML(typ="rt", pure=True)
    try:
        root = yaml.compose(text)
    except YAMLError as error:
        document.problems.append(_syntax(text, error))
        return document
    if root is None:
        document.problems.append(
            Problem(0, "the file is empty", "Write at least `models:` with one model and its `tiers:`")
        )
        return document
    document.data = _Reader(yaml, document, environment).read(root, ())
    return document


class _Reader:
    """Turns nodes into plain data while it notes lines and problems."""

    def __init__(self, yaml: YAML, document: Document, environment: Mapping[str, str]) -> None:
        self._resolver = yaml.resolver
        self._constructor = YAML(typ="safe", pure=True).constructor
        self._document = document
        self._environment = environment

    def read(self, node: Node, place: Place) -> Plain:
        self._document.lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, MappingNode):
            return self._mapping(node, place)
        if isinstance(node, SequenceNode):
            return [self.read(item, (*place, index)) for index, item in enumerate(node.value)]
        return self._scalar(node) if isinstance(node, ScalarNode) else None

    def _mapping(self, node: MappingNode, place: Place) -> dict[str, Plain]:
        result: dict[str, Plain] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in result:
                first = self._document.lines[(*place, key)]
                self._problem(
                    line, f"the key '{key}' is written twice, first on line {first}", "Keep one of the two"
                )
                continue
            self._document.lines[(*place, key)] = line
            result[key] = self.read(value_node, (*place, key))
        return result

    def _scalar(self, node: ScalarNode) -> Plain:
        line, text = node.start_mark.line + 1, self._with_variables(node)
        tag = str(node.tag)
        if text != node.value and not node.style:
            tag = str(self._resolver.resolve(ScalarNode, text, (True, False)))
        kind = tag.rsplit(":", 1)[-1]
        if kind not in _SCALARS:
            self._problem(line, f"the YAML tag '{tag}' means nothing here", "Remove the tag; quote text")
            return None
        value = self._constructor.construct_object(ScalarNode(f"tag:yaml.org,2002:{kind}", text))
        return value if value is None or isinstance(value, bool | int | float | str) else str(value)

    def _with_variables(self, node: ScalarNode) -> str:
        line, text = node.start_mark.line + 1, str(node.value)
        if _OPENING_OF_VARIABLE.search(text):
            self._problem(
                line,
                f"'{text}' holds a '${{' that is not ${{NAME}}",
                "Write ${NAME}: letters, digits, underscores",
            )
        for name in _VARIABLE.findall(text):
            if name not in self._environment:
                self._problem(line, f"the environment has no {name}", f"export {name}=… before the start")
        return _VARIABLE.sub(lambda match: self._environment.get(match[1], match[0]), text)

    def _problem(self, line: int, what: str, mend: str) -> None:
        self._document.problems.append(Problem(line, what, mend))


def _unreadable(path: Path, error: OSError | UnicodeDecodeError) -> Problem:
    if isinstance(error, FileNotFoundError):
        return Problem(
            0, "there is no such file", "Name one that is there; deploy/local.yaml is a config that works"
        )
    if isinstance(error, IsADirectoryError):
        return Problem(0, "this is a folder", "Name the YAML file in it")
    if isinstance(error, UnicodeDecodeError):
        return Problem(0, "the file is not UTF-8 text", "Save it as UTF-8")
    return Problem(0, f"the file can't be read ({error.strerror})", "Check its permissions")


def _syntax(text: str, error: YAMLError) -> Problem:
    if not isinstance(error, MarkedYAMLError):
        return Problem(0, f"this is not YAML ({error})", "Remove what YAML can't hold")
    mark = error.problem_mark or error.context_mark
    number = min(mark.line + 1, max(1, len(text.splitlines()))) if mark else 0
    line = text.splitlines()[number - 1] if number else ""
    problem = str(error.problem)
    if "\t" in line[: len(line) - len(line.lstrip())] or "'\\t'" in problem:
        return Problem(number, "a tab stands in the indentation", "Indent with spaces")
    return Problem(number, f"this is not YAML: {problem}", _syntax_mend(problem))


def _syntax_mend(problem: str) -> str:
    mends = {
        "mapping values are not allowed": "Quote text that holds a colon, or begin a new line",
        "undefined alias": "Define the anchor above, or quote text that begins with *",
        "cannot start any token": "Quote the value",
        "unexpected end of stream": "Close the quote",
        "another document": "Keep one document in the file, without `---` inside it",
        "<stream end>": "Close the bracket, or check the indentation",
    }
    return next((mend for part, mend in mends.items() if part in problem), "Check the indentation and quotes")
