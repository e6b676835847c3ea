"""Every command of the load tests says what it takes."""

from importlib import import_module
from pathlib import Path

import pytest

import loadtests

COMMANDS = sorted(
    path.stem for path in Path(loadtests.__file__).parent.glob("*.py") if "def _parser(" in path.read_text()
)


@pytest.mark.parametrize("name", COMMANDS)
def test_it_says_what_it_takes(name: str) -> None:
    assert "--help" in import_module(f"loadtests.{name}")._parser().format_help()
