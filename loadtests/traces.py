"""Recorded loads in their public forms: Mooncake's JSONL and the CSV of Azure's LLM inference traces.

Mooncake: `{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}`, where each id names a block of
512 prompt tokens together with all before it. Azure: `TIMESTAMP,ContextTokens,GeneratedTokens`.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import orjson

BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request of a trace. `blocks` name the prompt's leading blocks; equal names mean equal text."""

    at_s: float
    prompt_tokens: int
    answer_tokens: int
    blocks: tuple[int, ...] = ()


def read_trace(path: Path) -> list[Recorded]:
    """A whole trace in order of time, from 0 on; raises ValueError that names the line."""
    with path.open(encoding="utf-8") as lines:
        is_csv = path.suffix == ".csv"
        recorded = sorted(_azure(lines) if is_csv else _mooncake(lines), key=lambda one: one.at_s)
    if not recorded:
        raise ValueError(f"{path} holds no request")
    first_s = recorded[0].at_s
    return [Recorded(r.at_s - first_s, r.prompt_tokens, r.answer_tokens, r.blocks) for r in recorded]


def _mooncake(lines: Iterable[str]) -> list[Recorded]:
    found: list[Recorded] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
            blocks = tuple(int(block) for block in row.get("hash_ids", ()))
            found.append(
                Recorded(row["timestamp"] / 1000, int(row["input_length"]), int(row["output_length"]), blocks)
            )
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} is not of Mooncake's form: {error!r}") from None
    return found


def _azure(lines: Iterable[str]) -> list[Recorded]:
    found: list[Recorded] = []
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            at_s = datetime.fromisoformat(row["TIMESTAMP"]).timestamp()
            found.append(Recorded(at_s, int(row["ContextTokens"]), int(row["GeneratedTokens"])))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"line {number} is not of Azure's form: {error!r}") from None
    return found
