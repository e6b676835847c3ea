"""Recorded loads in the public forms, and the prompts that are made of them."""

from pathlib import Path

import pytest

from loadtests.prompts import Prompts, recorded_prompt, words
from loadtests.tokens import content_text, encode
from loadtests.traces import Recorded, read_trace

MOONCAKE = """\
{"timestamp": 3052, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 2366]}
{"timestamp": 27, "input_length": 1030, "output_length": 500, "hash_ids": [46, 47, 48]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_mooncake_is_read_in_order_of_time(tmp_path: Path) -> None:
    first, second = read_trace(written(tmp_path, "trace.jsonl", MOONCAKE))
    assert first == Recorded(0.0, 1030, 500, (46, 47, 48))
    assert second == Recorded(pytest.approx(3.025), 1100, 52, (46, 47, 2366))


def test_azure_is_read(tmp_path: Path) -> None:
    first, second = read_trace(written(tmp_path, "trace.csv", AZURE))
    assert first == Recorded(0.0, 374, 44)
    assert second.at_s == pytest.approx(4.314579, abs=1e-5)
    assert (second.prompt_tokens, second.answer_tokens) == (396, 109)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("t.jsonl", MOONCAKE + "{}\n", "line 3"),
        ("t.jsonl", "nonsense\n", "line 1"),
        ("t.csv", AZURE + "yesterday,1,1\n", "line 4"),
        ("t.csv", "a,b\n1,2\n", "line 2"),
        ("t.jsonl", "\n", "no request"),
    ],
)
def test_what_is_no_trace_is_refused_by_line(tmp_path: Path, name: str, text: str, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        read_trace(written(tmp_path, name, text))


def test_prompts_of_a_trace_share_what_the_trace_shares() -> None:
    texts = [
        content_text(recorded_prompt(Recorded(0.0, 1100, 1, blocks), number)[0]["content"])
        for number, blocks in enumerate([(1, 2, 3), (1, 2, 4), (1, 5, 6)])
    ]
    first, second, third = (encode(text) for text in texts)
    assert [len(ids) for ids in (first, second, third)] == [1100] * 3
    assert first[:1024] == second[:1024]
    assert first[1024:] != second[1024:]
    assert first[:512] == third[:512]
    assert first[512:1024] != third[512:1024]


def test_prompts_share_prefixes_by_popularity() -> None:
    import random

    prompts = Prompts(prefixes=4, prefix_tokens=64, prompt_tokens=16)
    rng = random.Random(1)
    openings = [prompts.opening(rng)[0]["content"] for _ in range(200)]
    counts = sorted((openings.count(one) for one in set(openings)), reverse=True)
    assert len(counts) == 4
    assert counts[0] > 2 * counts[-1]
    assert len(encode(str(openings[0]))) == 64
    assert Prompts().opening(rng) == ()
    assert words("a", 9) != words("b", 9)
