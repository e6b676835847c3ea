"""The drills, one file each: whoever adds a file with a `DRILL` has added a drill."""

import importlib
import pkgutil

from loadtests.drill_plan import Drill


def all_drills() -> dict[str, Drill]:
    """Every drill by its name."""
    modules = (
        importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)
    )
    drills: list[Drill] = [module.DRILL for module in modules]
    return {drill.name: drill for drill in sorted(drills, key=lambda drill: drill.name)}
