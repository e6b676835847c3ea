"""The fuzz targets hold on their seeds, on mangled seeds, and on what fuzzing once found; and `make fuzz` runs."""

from pathlib import Path
from random import Random

import pytest

from fuzz.__main__ import explore
from fuzz.pieces import cut
from fuzz.seeds import SEEDS
from fuzz.targets import TARGETS

FOUND = {
    "http_request": [
        # Nested too deeply to be written, though not to be read; and as deep as just goes.
        b"\1\0" + b'{"model":"chat","messages":[{"content":' + b"[" * 300 + b"]" * 300 + b"}]}",
        *(
            b"\1\0" + b'{"model":"chat","temperature":0,"messages":[{"a":%b}]}' % (b"[" * n + b"]" * n)
            for n in range(245, 256)
        ),
    ],
    "stream": [
        # Bytes that are no UTF-8, a control character and an endless id in the place of a plain token's.
        b"\3\0" + SEEDS["stream"][0][2:].replace(b'"two"', b'"\xd5wo"'),
        b"\3\0" + SEEDS["stream"][0][2:].replace(b'"two"', b'"t\x01o"'),
        b"\3\0" + SEEDS["stream"][0][2:].replace(b"[6]", b"[%b]" % (b"6" * 5000)),
        # A chat's choice with `delta: null`, in a continuation.
        b'\7\0{"choices":[{"delta":null,"text":"a","token_ids":[1]}]}',
        b'\3\0{"choices":[{"delta":{"content":"a","x":%b},"token_ids":[1]}]}' % (b"[" * 300 + b"]" * 300),
    ],
}


def test_every_target_has_seeds() -> None:
    assert SEEDS.keys() == TARGETS.keys()


@pytest.mark.parametrize(("name", "data"), [(name, data) for name, found in FOUND.items() for data in found])
def test_what_was_found_once_stays_mended(name: str, data: bytes) -> None:
    TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
def test_mangled_seeds_break_nothing(name: str) -> None:
    rng = Random(name)
    for seed in SEEDS[name]:
        TARGETS[name](seed)
        for _ in range(300):
            TARGETS[name](mangled(seed, rng))


def mangled(data: bytes, rng: Random) -> bytes:
    """The data with a few bytes changed, removed or said twice."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed))
        match rng.randrange(4):
            case 0:
                changed[at] = rng.randrange(256)
            case 1:
                del changed[at : at + rng.randint(1, 4)]
            case 2:
                changed[at:at] = changed[at : at + rng.randint(1, 32)]
            case _:
                changed[at:at] = rng.choice([b"\r\n", b"\0", b"\n\n", b"[", b"{", b'"', b"\xff", b"1" * 30])
        changed = changed or bytearray(b"\0")
    return bytes(changed)


@pytest.mark.parametrize("seed", range(12))
def test_pieces_are_the_whole(seed: int) -> None:
    assert b"".join(cut(b"the whole of it, however it is cut", seed)) == b"the whole of it, however it is cut"


def test_a_run_counts_its_inputs(tmp_path: Path) -> None:
    explored = explore("pin", 1, tmp_path)
    assert explored.inputs > 1000
    assert explored.finding == ""


@pytest.mark.slow
def test_a_finding_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that nobody has is the simplest one that fails."""
    monkeypatch.setitem(SEEDS, "nobody", (b"x",))
    assert "KeyError" in explore("nobody", 1, tmp_path).finding
