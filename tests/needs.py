"""Programs that some tests need from outside the virtual environment. On CI they must be there."""

import os
import shutil

import pytest


def need(program: str, package: str) -> str:
    """The program's path. Skips the test where it is missing; fails it on CI (`CI` is set), where nothing may be left out."""
    found = shutil.which(program)
    if found is None:
        why = f"{program} is not installed: apt-get install {package}"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    return found
