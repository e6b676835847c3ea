"""What the documents promise of configs: their examples are valid, and every key is explained."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from deploy.config import Config, load_config
from deploy.plan_mig import load_mig_spec, planned
from deploy.progress import ready_lines

ROOT = Path(__file__).parents[2]
EXAMPLES = [
    (document, block)
    for document in ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
    for block in re.findall(r"```yaml\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
]


@pytest.mark.parametrize(("document", "example"), EXAMPLES)
def test_examples_are_valid(document: str, example: str, tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(example)
    if example.startswith("gpu:"):
        assert planned(load_mig_spec(path), path).gpus, document
        return
    environment = dict.fromkeys(re.findall(r"\$\{(\w+)\}", example), "x")
    assert load_config(path, environment).models, document


def test_there_are_examples() -> None:
    assert {"README.md", "docs/config.md"} <= {document for document, _ in EXAMPLES}


def test_the_readme_shows_what_is_printed_when_it_is_ready() -> None:
    lines = ready_lines(load_config(ROOT / "deploy" / "local.yaml"), "http://127.0.0.1:8000")
    assert "\n".join(lines) in (ROOT / "README.md").read_text()


def keys_of(annotation: Any) -> Iterator[str]:
    """Every key of the config, however deep."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield name
            yield from keys_of(field.annotation)
    for argument in get_args(annotation):
        yield from keys_of(argument)


@pytest.mark.parametrize("key", sorted(set(keys_of(Config))))
def test_every_key_is_explained(key: str) -> None:
    assert re.search(rf"\b{key}\b", (ROOT / "docs/config.md").read_text())
