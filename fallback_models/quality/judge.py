"""From answers to figures. Pure.

Two things are judged. *Likeness*: how likely the best tier's model finds the tier's answers, as a perplexity. *Exactness*:
the share of right answers to questions that have one. Each is taken relative to the best tier's own, and a tier's quality
is the mean of both, times the best tier's. So the figures compare tiers of one ladder; they say nothing across ladders.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

_WORD = re.compile(r"[^\W_]+(?:-[^\W_]+)*")


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Of one answer under the best tier's model: the sum of its tokens' natural log probabilities."""

    logprob: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Answers:
    """What one tier gave: likelihoods of its open answers (none where they can't be had), and right or wrong."""

    likelihoods: Sequence[Likelihood]
    right: Sequence[bool]
    opened: int = 0
    """Open questions that were asked."""
    silent: int = 0
    """Those of them to which nothing was said."""


@dataclass(frozen=True, slots=True)
class Scores:
    """A tier's figures. `perplexity` is None where no likelihood could be had; 1 is the least there can be."""

    perplexity: float | None
    exact: float | None
    answered: float = 1.0
    """The share of open questions to which something was said."""


def is_right(answer: str, accepted: Sequence[str]) -> bool:
    """Whether a right answer stands in the first line, as words of its own, whatever stands around it."""
    lines = answer.strip().splitlines()
    said = _words(lines[0]) if lines else []
    return any(_contains(said, _words(one)) for one in accepted)


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def _contains(said: Sequence[str], wanted: Sequence[str]) -> bool:
    size = len(wanted)
    return any(said[n : n + size] == wanted for n in range(len(said) - size + 1))


def scores(answers: Answers) -> Scores:
    """The tier's own figures. Perplexity is over all tokens, so that long answers count for more."""
    tokens = sum(one.tokens for one in answers.likelihoods)
    logprob = sum(one.logprob for one in answers.likelihoods)
    asked = len(answers.right)
    return Scores(
        perplexity=exp(-logprob / tokens) if tokens else None,
        exact=sum(answers.right) / asked if asked else None,
        answered=1.0 - answers.silent / answers.opened if answers.opened else 1.0,
    )


def quality(tier: Scores, best: Scores, best_quality: float) -> float | None:
    """What the tier's answers are worth, at most what the best tier's are; None where nothing can be compared."""
    likeness, parts = _likeness(tier, best), []
    if likeness is not None:
        parts.append(likeness)
    if tier.exact is not None and best.exact:
        parts.append(min(1.0, tier.exact / best.exact))
    return round(best_quality * sum(parts) / len(parts), 3) if parts else None


def _likeness(tier: Scores, best: Scores) -> float | None:
    """Of what is said; what is not said is as unlike as can be."""
    if best.perplexity is None or not best.answered:
        return None
    if tier.answered == 0.0:
        return 0.0
    if tier.perplexity is None:
        return None
    return min(1.0, tier.answered / best.answered * best.perplexity / tier.perplexity)
