"""Whose cache a block fits: everything that makes one engine's block mean something else in another, as 16 bytes."""

import json
from collections.abc import Mapping
from pathlib import Path

import xxhash

_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt")
_SAMPLE_BYTES = 1 << 16
_SAMPLES = 16


def fingerprint(facts: Mapping[str, object]) -> bytes:
    """16 bytes that are equal where all facts are."""
    return xxhash.xxh3_128_digest(json.dumps(facts, sort_keys=True, default=str).encode())


def weights_digest(model: str) -> str:
    """Tells two folders of weights apart that have the same name: by sizes, and samples of every file's content.

    Empty for a model that is no folder here: then its name and revision must do.
    """
    folder = Path(model)
    if not folder.exists():
        return ""
    files = [folder] if folder.is_file() else sorted(f for kind in _WEIGHTS for f in folder.glob(kind))
    digest = xxhash.xxh3_128()
    for file in files:
        _sample(file, digest)
    return digest.hexdigest()


def _sample(file: Path, digest: xxhash.xxh3_128) -> None:
    size = file.stat().st_size
    digest.update(f"{file.name} {size}".encode())
    step = max(_SAMPLE_BYTES, size // _SAMPLES)
    with file.open("rb") as stream:
        for at in range(0, size, step):
            stream.seek(at)
            digest.update(stream.read(_SAMPLE_BYTES))
