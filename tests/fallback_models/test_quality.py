"""Answers to figures: what is right, how likely, and what a tier is worth beside the best."""

from collections import Counter
from math import log

import pytest

from fallback_models.quality.judge import Answers, Likelihood, Scores, is_right, quality, scores
from fallback_models.quality.prompts import load_prompts


@pytest.mark.parametrize(
    ("answer", "accepted", "expected"),
    [
        ("Paris", ["Paris"], True),
        ("paris.", ["Paris"], True),
        ("The capital of France is **Paris**.", ["Paris"], True),
        ("\n  Paris\n", ["Paris"], True),
        ("London\nParis", ["Paris"], False),
        ("Parisian", ["Paris"], False),
        ("15", ["5", "five"], False),
        ("It is five.", ["5", "five"], True),
        ("forty-two", ["42", "forty-two"], True),
        ("forty", ["42", "forty-two"], False),
        ("", ["5"], False),
        ("...", ["5"], False),
    ],
)
def test_right_answers(answer: str, accepted: list[str], expected: bool) -> None:
    assert is_right(answer, accepted) is expected


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (Answers([Likelihood(-2 * log(4), 2)], [True, False]), Scores(pytest.approx(4.0), 0.5)),
        # over all tokens: three at 1/2 and one at 1/16
        (Answers([Likelihood(-3 * log(2), 3), Likelihood(-log(16), 1)], []), Scores(pytest.approx(128**0.25), None)),
        (Answers([], [True], opened=4, silent=1), Scores(None, 1.0, 0.75)),
        (Answers([], []), Scores(None, None)),
    ],
)  # fmt: skip
def test_scores(answers: Answers, expected: Scores) -> None:
    assert scores(answers) == expected


BEST = Scores(2.0, 0.8)


@pytest.mark.parametrize(
    ("tier", "best", "expected"),
    [
        (BEST, BEST, 1.0),
        (Scores(4.0, 0.4), BEST, 0.5),
        (Scores(4.0, 0.8), BEST, 0.75),
        # better than the best is not more than it
        (Scores(1.0, 1.0), BEST, 1.0),
        # silence is no likeness
        (Scores(2.0, 0.8, answered=0.5), BEST, 0.75),
        (Scores(None, 0.8, answered=0.0), BEST, 0.5),
        # one of the two is enough
        (Scores(None, 0.2), BEST, 0.25),
        (Scores(8.0, 0.2), Scores(2.0, 0.0), 0.25),
        (Scores(None, None), BEST, None),
        (Scores(None, 0.5), Scores(None, 0.0), None),
    ],
)
def test_quality(tier: Scores, best: Scores, expected: float | None) -> None:
    assert quality(tier, best, 1.0) == expected
    assert quality(tier, best, 0.9) == (
        None if expected is None else pytest.approx(0.9 * expected, abs=0.001)
    )


def test_the_prompt_set_that_ships() -> None:
    prompts = load_prompts()
    assert len(prompts.open) >= 24
    assert len(prompts.exact) >= 20
    asked = Counter([*prompts.open, *(item.prompt for item in prompts.exact)])
    assert max(asked.values()) == 1
    for item in prompts.exact:
        assert is_right(item.answers[0], item.answers)
        assert not is_right(item.prompt, item.answers) or "or" in item.prompt, "it gives itself away"
    assert len(prompts.first(3).open) == len(prompts.first(3).exact) == 3
