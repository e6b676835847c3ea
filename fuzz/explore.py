"""One target under Atheris, which follows what each input reached: `python -m fuzz.explore TARGET [libFuzzer options]`."""

import sys

import atheris

# Only what is imported in here is watched by the fuzzer.
with atheris.instrument_imports(include=["gateway", "fallback_models"]):
    from fuzz.targets import TARGETS


def main() -> None:
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
