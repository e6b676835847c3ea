"""`graceway bench quality`: measures what each tier's answers are worth against running replicas, and writes it down."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import aiohttp

from deploy.config import Config, Model, Tier, load_config
from deploy.config_edit import with_tier_values
from fallback_models.quality.interview import Interview, InterviewFailed, Server, interviewed
from fallback_models.quality.judge import Scores, quality, scores
from fallback_models.quality.prompts import PromptSet

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """One tier. `quality` is None where it was not measured, and `why` says why."""

    tier: str
    place: int
    scores: Scores | None
    quality: float | None
    why: str = ""

    def line(self) -> str:
        if self.scores is None:
            return f"{self.tier:<16} not measured: {self.why}"
        s = self.scores
        parts = [
            f"perplexity {s.perplexity:.2f}" if s.perplexity is not None else "no likelihoods",
            f"{s.exact:.0%} of exact answers" if s.exact is not None else "no exact answers",
            f"{s.answered:.0%} answered",
        ]
        worth = "nothing to compare" if self.quality is None else f"quality {self.quality:g}"
        return f"{self.tier:<16} {', '.join(parts)}: {worth}"


async def measure(
    model: str,
    ladder: Model,
    prompts: PromptSet,
    status: Json | None,
    timeout_s: float,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Measured]:
    """Each tier of a model's ladder, best first; `status` is a running gateway's, for tiers that Graceway starts. `tell` hears
    who is asked, as that takes its time.

    Raises:
        InterviewFailed: the best tier can't be asked, so that nothing can be compared.
    """
    async with aiohttp.ClientSession() as http:
        interview = Interview(http, timeout_s)
        best = ladder.tiers[0]
        judge = await _server(interview, model, best, status)
        found: list[Measured] = []
        best_scores: Scores | None = None
        for place, tier in enumerate(ladder.tiers):
            if not tier.has_replicas:
                found.append(Measured(tier.name, place, None, None, "its answers are not a model's"))
                continue
            tell(f"asking {tier.name} …")
            try:
                server = await _server(interview, model, tier, status)
                seen = scores(await interviewed(interview, server, judge, prompts))
            except InterviewFailed as failed:
                if best_scores is None:
                    raise
                found.append(Measured(tier.name, place, None, None, str(failed)))
                continue
            best_scores = best_scores or seen
            found.append(Measured(tier.name, place, seen, quality(seen, best_scores, best.quality)))
        return found


async def _server(interview: Interview, model: str, tier: Tier, status: Json | None) -> Server:
    """A replica of the tier that answers: from the config, or as a running gateway knows it."""
    if not tier.has_replicas:
        raise InterviewFailed(f"{tier.name} has no model to ask")
    if tier.replicas:
        return Server(tier.replicas[0].url, tier.served_model or "", tier.api_key)
    tiers = [] if status is None else status["models"].get(model, {}).get("tiers", [])
    ready = [
        r["url"] for t in tiers if t["name"] == tier.name for r in t["replicas"] if r["state"] == "ready"
    ]
    if not ready:
        raise InterviewFailed(f"no replica of {tier.name} is ready: start the system, and name it with --url")
    return Server(ready[0], await interview.served_model(ready[0], tier.api_key), tier.api_key)


def needs_gateway(ladder: Model) -> bool:
    """Whether a tier's replicas are only known to a running gateway."""
    return any(tier.has_replicas and not tier.replicas for tier in ladder.tiers)


def fragment(model: str, measured: list[Measured], today: date) -> str:
    """What to write into the config, as YAML."""
    tiers = [
        f'      - {{name: {one.tier}, quality: {one.quality:g}, quality_as_of: "{today}"}}'
        for one in measured
        if one.quality is not None
    ]
    return "\n".join(["models:", f"  {model}:", "    tiers:", *tiers])


def write(path: Path, model: str, measured: list[Measured], today: date) -> Config:
    """Puts the figures into the file, and nothing else.

    Raises:
        ConfigError: what came out would be no valid config; then nothing is written.
        NoSuchTier: a tier of the config can't be changed there.
    """
    text = before = path.read_text(encoding="utf-8")
    for one in measured:
        if one.quality is not None:
            values = {"quality": f"{one.quality:g}", "quality_as_of": f'"{today}"'}
            text = with_tier_values(text, model, one.place, values)
    path.write_text(text, encoding="utf-8")
    try:
        return load_config(path)
    except ValueError:
        path.write_text(before, encoding="utf-8")
        raise
