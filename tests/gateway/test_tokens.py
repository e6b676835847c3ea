"""How tokens are counted: the estimate is never too low, and the tokenizer of a folder counts as its model does."""

import time
from pathlib import Path

import orjson
import pytest

from gateway.tokens import estimate, most_tokens
from replicas.model_tokens import CannotCount, ModelTokens

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "smollm2-135m"


@pytest.fixture(scope="module")
def tokens() -> ModelTokens:
    found = ModelTokens(MODEL)
    if not found.is_there:
        pytest.skip("the demonstration model is not there: make setup")
    return found


TEXTS = (
    "Tell me of rivers and rain, and why they meet the sea.",
    "0123456789 " * 20,
    "日本語の文章です。" * 20,
    "🌊🏔️👩‍👩‍👧 é à ü ñ",
    "def f(x):\n\treturn {k: v for k, v in x.items()}  # {{}}[]()<>;:'\"\n" * 10,
    "".join(chr(c) for c in range(32, 127)),
    "\n\n\n\t\t\t   ",
    "supercalifragilisticexpialidocious " * 10,
)


@pytest.mark.parametrize("text", TEXTS)
def test_the_estimate_is_never_too_low(tokens: ModelTokens, text: str) -> None:
    chat = {"messages": [{"role": "user", "content": text}]}
    prompt = {"prompt": text}
    for body in (chat, prompt):
        real = tokens.count(body)
        assert real <= estimate(body) <= 12 * real + 80
        assert real <= most_tokens(len(orjson.dumps(body)), len(body.get("messages") or ()))


def test_the_chat_template_counts(tokens: ModelTokens) -> None:
    """SmolLM2's template: instructions of its own where there are none, and six tokens around each message."""
    plain = tokens.count({"messages": [{"role": "user", "content": "hi"}]})
    told = tokens.count(
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]}
    )
    assert (plain, told) == (31, 18)
    parts = [{"type": "text", "text": "hi"}]
    assert tokens.count({"messages": [{"role": "user", "content": parts}]}) == plain
    continued = {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": False}
    assert tokens.count(continued) == plain - 4


def test_the_first_count_reads_the_files_and_later_ones_are_quick(tokens: ModelTokens) -> None:
    body = {"messages": [{"role": "user", "content": "hi " * 1000}]}
    tokens.count(body)
    begun = time.process_time()
    tokens.count(body)
    assert time.process_time() - begun < 0.2


def test_what_can_not_be_counted(tmp_path: Path, tokens: ModelTokens) -> None:
    image = [{"type": "image_url", "image_url": {"url": "data:"}}]
    for body in ({"messages": [{"role": "user", "content": image}]}, {"prompt": ["a", "b"]}):
        with pytest.raises(CannotCount):
            tokens.count(body)
    (tmp_path / "tokenizer.json").write_text("{}")
    broken = ModelTokens(tmp_path)
    assert broken.is_there
    with pytest.raises(CannotCount):
        broken.count({"prompt": "a"})
    assert not ModelTokens(tmp_path / "nowhere").is_there
