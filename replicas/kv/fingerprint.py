"""Whose cache a block fits: everything that makes one engine's block mean something else in another, as 16 bytes."""

import json
from collections.abc import Mapping
from pathlib import Path

import xxhash
from huggingface_hub import try_to_load_from_cache

_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt")
_SAMPLE_BYTES = 1 << 16
_SAMPLES = 16


def fingerprint(facts: Mapping[str, object]) -> bytes:
    """16 bytes that are equal where all facts are."""
    return xxhash.xxh3_128_digest(json.dumps(facts, sort_keys=True, default=str).encode())


def folder_of(model: str, revision: str | None = None, cache: str | None = None) -> str:
    """Where the weights of a hub's model were put when they were loaded; `model` itself where it is no hub's.

    The same name and branch may be other weights tomorrow, and on a machine that loaded them yesterday.
    """
    if Path(model).exists():
        return model
    try:
        found = try_to_load_from_cache(model, "config.json", cache_dir=cache, revision=revision)
    except ValueError:
        return model
    return str(Path(found).parent) if isinstance(found, str) else model


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
