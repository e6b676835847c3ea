"""What a config means, in words: each model's ladder, its capacity, and the knobs that never apply. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from deploy.config import Config, Model, Tier
from gateway.specs import FeatureSpec, FeaturesSpec, KeySpec

_ENGINE_ONLY = ("slots", "limit", "slo", "gives_up", "probe", "max_model_len", "tokenizer", "kv")
_MANAGED_ONLY = ("model", "gpu", "scale", "engine_args", "environment")
_OPENAI_ONLY = ("replicas", "api_key", "ca_file", "cert_file", "key_file", "price", "budget")
_COMMAND_ONLY = ("command",)
_REPLICA_ONLY = ("served_model", "resume", *_OPENAI_ONLY)
_CANNED_ONLY = ("text", "texts", "language_field")
_CACHE_ONLY = ("max_age_s", "near")
_NEVER_APPLY: dict[str, tuple[str, ...]] = {
    "openai": (*_MANAGED_ONLY, *_COMMAND_ONLY, *_CANNED_ONLY, *_CACHE_ONLY),
    "vllm": (*_OPENAI_ONLY, *_COMMAND_ONLY, *_CANNED_ONLY, *_CACHE_ONLY),
    "llamacpp": (*_OPENAI_ONLY, "kv", *_COMMAND_ONLY, *_CANNED_ONLY, *_CACHE_ONLY),
    "command": (*_OPENAI_ONLY, "kv", *_CANNED_ONLY, *_CACHE_ONLY),
    "cache": (*_ENGINE_ONLY, *_MANAGED_ONLY, *_COMMAND_ONLY, *_REPLICA_ONLY, *_CANNED_ONLY),
    "canned": (*_ENGINE_ONLY, *_MANAGED_ONLY, *_COMMAND_ONLY, *_REPLICA_ONLY, *_CACHE_ONLY),
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """The ladders, and what an operator may not have meant. Neither stops a start."""

    ladder: tuple[str, ...]
    warnings: tuple[str, ...]


def explain(config: Config) -> Explanation:
    ladder = [line for name, model in config.models.items() for line in _ladder(name, model)]
    return Explanation(tuple(ladder), tuple(_warnings(config)))


def _ladder(name: str, model: Model) -> Iterator[str]:
    at_once = sum(_replica_count(tier) * (tier.slots or 0) for tier in model.tiers if tier.has_replicas)
    unlimited = any(tier.has_replicas and tier.slots is None for tier in model.tiers)
    yield f"{name}: {len(model.tiers)} tiers, best first" + (
        "" if unlimited or not at_once else f"; {at_once} at once"
    )
    if model.features is not None:
        yield f"  told about the user, in {model.features.deadline_s:g} s: {_told(model.features)}"
    for position, tier in enumerate(model.tiers, 1):
        yield f"  {position}. {tier.name}: {_means(tier)}; {_worth(tier)}"


def _worth(tier: Tier) -> str:
    if tier.quality_as_of is not None:
        return f"quality {tier.quality:g}, measured {tier.quality_as_of}"
    return f"quality {tier.quality:g}"


_WITHOUT = {
    "critical": "refused without",
    "important": "else a default",
    "useful": "else what it last was",
    "optional": "else left out",
}


def _told(features: FeaturesSpec) -> str:
    return ", ".join(f"{item.name} ({_without(item)})" for item in features.items)


def _without(item: FeatureSpec) -> str:
    has_default = item.level != "important" or item.default
    return _WITHOUT[item.level] if has_default else "else left out, as it has no default"


def _means(tier: Tier) -> str:
    if tier.backend == "cache":
        return f"complete answers given before to the same request{_near(tier)}, at most {tier.max_age_s:g} s old"
    if tier.backend == "canned":
        others = f", or one in {', '.join(tier.texts)}" if tier.texts else ""
        return f"always the text {_shortened(tier.text or '')!r}{others}"
    who = (
        f"{tier.served_model} on servers that already run"
        if not tier.is_managed
        else f"{tier.model or tier.served_model} on {tier.backend if not tier.command else tier.command[0]}"
    )
    late = f" ({tier.slo.sheddable_ttft_s:g} s if sheddable)" if tier.slo.sheddable_ttft_s else ""
    promise = f"first token in {tier.slo.ttft_s:g} s{late}, then one each {tier.slo.itl_s:g} s"
    more = f"{_costs(tier)}{_leaves_out(tier)}{_keeps(tier)}"
    return f"{who}{_hardware(tier)}; {_capacity(tier)}; promises {promise}{more}"


def _costs(tier: Tier) -> str:
    """What a paid tier costs, in words."""
    if tier.price is None:
        return ""
    prices = (
        f"; costs {tier.price.prompt:g} and {tier.price.answer:g} for a million tokens of prompt and answer"
    )
    budget = tier.budget
    return prices + (f", at most {budget.amount:g} per {budget.per}" if budget else ", without a bound")


def _near(tier: Tier) -> str:
    if tier.near is None:
        return ""
    return f" or one alike (cosine ≥ {tier.near.min_similarity:g} by {tier.near.served_model})"


def _leaves_out(tier: Tier) -> str:
    """What a lower tier gives up, in words."""
    given = tier.gives_up
    window = f"{tier.max_model_len} tokens" if tier.max_model_len else "what its engine tells"
    out = [
        f"answers beyond {given.max_tokens} tokens" if given.max_tokens else "",
        f"choices beyond {given.n}" if given.n else "",
        "log probabilities" if given.logprobs else "",
        f"the oldest turns beyond its window ({window})" if given.context else "",
    ]
    told = ", ".join(filter(None, out))
    return f"; leaves out {told}" if told else ""


_KEEPS = {
    "checkpoint": "a turn's KV blocks are stored at its end",
    "replicate": "KV blocks are stored as they fill",
    "sync": "an answer ends when its KV blocks are stored",
}


def _keeps(tier: Tier) -> str:
    return f"; {_KEEPS[tier.kv.strategy]}" if tier.keeps_blocks else ""


def _hardware(tier: Tier) -> str:
    if not tier.is_managed:
        return ""
    if isinstance(tier.gpu, str):
        return f" (a {tier.gpu} slice each)"
    return f" ({tier.gpu:g} GPU each)" if tier.gpu else " (CPU)"


def _capacity(tier: Tier) -> str:
    count, most = _replica_count(tier), tier.scale.max if tier.is_managed else 0
    if tier.is_managed and most > count:
        return f"{count} to {most} replicas{_spare(tier)}, as the load asks for, × {tier.slots} slots"
    replicas = f"{count} replica" + ("s" if count != 1 else "") + _spare(tier)
    if tier.slots is None:
        learnt = f"as many at once as {tier.limit} learns" if tier.limit != "none" else "no limit at once"
        return f"{replicas}, {learnt}"
    return f"{replicas} × {tier.slots} slots = {count * tier.slots} at once"


def _replica_count(tier: Tier) -> int:
    """Those that serve."""
    return tier.scale.min if tier.is_managed else len(tier.replicas) - _standby_count(tier)


def _spare(tier: Tier) -> str:
    count = _standby_count(tier)
    return f" ({count} more stand by)" if count else ""


def _standby_count(tier: Tier) -> int:
    if tier.is_managed:
        return tier.scale.standbys
    return max(0, len(tier.replicas) - (tier.in_rotation or len(tier.replicas)))


def _warnings(config: Config) -> Iterator[str]:
    for name, model in config.models.items():
        yield from _unreachable(name, model)
        yield from _out_of_order(name, model)
        yield from _second_cache(name, model)
        yield from _idle_features(config, name, model)
        for tier in model.tiers:
            yield from _idle_knobs(name, tier)
            yield from _idle_window(name, tier)
            yield from _idle_kv(name, tier)
            yield from _unbounded_cost(name, tier)
    yield from _idle_sections(config)
    yield from _idle_keys(config)


def _unreachable(name: str, model: Model) -> Iterator[str]:
    always = next((i for i, tier in enumerate(model.tiers) if tier.backend == "canned"), len(model.tiers))
    for tier in model.tiers[always + 1 :]:
        last = model.tiers[always].name
        yield f"{name}/{tier.name} is never reached: {last} above it always answers. Move {last} to the end"


def _out_of_order(name: str, model: Model) -> Iterator[str]:
    for upper, lower in zip(model.tiers, model.tiers[1:], strict=False):
        if lower.quality > upper.quality:
            yield (
                f"{name}/{lower.name} (quality {lower.quality:g}) is below {upper.name} ({upper.quality:g}): "
                "tiers go from best to worst. Swap them, or correct the qualities"
            )


def _idle_features(config: Config, name: str, model: Model) -> Iterator[str]:
    for item in model.features.items if model.features is not None else ():
        if item.default and item.level in ("critical", "optional"):
            yield f"{name}: 'default' of feature {item.name} never applies: it is {item.level}. Remove it"
        if "max_age_s" in item.model_fields_set and item.level != "useful":
            yield f"{name}: 'max_age_s' of feature {item.name} never applies: it is {item.level}. Remove it"
    if model.features is not None and config.state_store.url in ("memory", "embedded"):
        yield f"{name}: nobody but this system writes into its state store: features need a redis:// of your own"


def _second_cache(name: str, model: Model) -> Iterator[str]:
    caches = [tier.name for tier in model.tiers if tier.backend == "cache"]
    for extra in caches[:-1]:
        yield f"{name}/{extra} remembers nothing: answers go into {caches[-1]}, the lowest cache. Keep one of them"


def _idle_knobs(name: str, tier: Tier) -> Iterator[str]:
    for knob in _NEVER_APPLY[tier.backend]:
        if knob in tier.model_fields_set:
            yield f"{name}/{tier.name}: '{knob}' never applies to backend {tier.backend}. Remove it"
    if tier.has_replicas and tier.slots is not None and "limit" in tier.model_fields_set:
        yield f"{name}/{tier.name}: 'limit' never applies: there are {tier.slots} slots. Remove one of the two"


def _idle_kv(name: str, tier: Tier) -> Iterator[str]:
    """What is said about blocks that nobody keeps, or to servers that hear nothing of it."""
    said = tier.kv.model_fields_set - {"strategy"}
    if tier.backend == "openai":
        why = "servers that already run have it on their own command line"
    elif tier.backend == "vllm" and not tier.keeps_blocks:
        why, said = "its strategy is recompute", said - {"host_memory_bytes"}
    else:
        return
    for knob in sorted(said):
        yield f"{name}/{tier.name}: 'kv.{knob}' never applies: {why}. Remove it"


def _unbounded_cost(name: str, tier: Tier) -> Iterator[str]:
    if tier.price is not None and tier.budget is None:
        yield f"{name}/{tier.name} may cost any amount. Add `budget: {{amount: …, per: day}}`"


def _idle_window(name: str, tier: Tier) -> Iterator[str]:
    """What is only of use to count turns."""
    knobs = ("tokenizer",) if tier.is_managed else ("tokenizer", "max_model_len")
    for knob in knobs if tier.has_replicas and not tier.gives_up.context else ():
        if knob in tier.model_fields_set:
            yield f"{name}/{tier.name}: '{knob}' never applies without 'gives_up: {{context: true}}'. Add that, or remove it"


def _idle_keys(config: Config) -> Iterator[str]:
    tenants: dict[str, KeySpec] = {}
    for key in config.keys:
        first = tenants.setdefault(key.tenant_name, key)
        for knob in ("weight", "requests_per_minute", "tokens_per_minute"):
            if getattr(first, knob) != getattr(key, knob):
                yield (
                    f"keys: '{knob}' of {first.name} and {key.name} differ, but both are {key.tenant_name}'s, which has one. "
                    "Write the same for both"
                )
    weighed = [key.name for key in config.keys if "weight" in key.model_fields_set]
    if weighed and len(tenants) == 1:
        yield f"keys: 'weight' of {weighed[0]} never applies: there is no other tenant. Remove it"


def _idle_sections(config: Config) -> Iterator[str]:
    tiers = [tier for model in config.models.values() for tier in model.tiers]
    if not any(tier.has_replicas for tier in tiers):
        for section in ("health", "engine_metrics", "breaker", "retry", "routing"):
            if section in config.model_fields_set:
                yield f"'{section}' never applies: no tier has replicas. Remove it"
    elif (
        config.retry.max_attempts == 1
        and {"budget_share", "budget_floor_per_s"} & config.retry.model_fields_set
    ):
        yield "retry.budget_… never applies: max_attempts is 1. Raise max_attempts, or remove the budget"
    zones = {endpoint.zone for tier in tiers for endpoint in tier.replicas}
    if config.routing.zone and config.routing.zone not in zones:
        yield f"routing.zone '{config.routing.zone}' never applies: no replica is there. Name one that has"
    if config.state_store.url == "memory" and config.managed_tiers():
        yield (
            "state_store 'memory' is not shared between processes: `graceway up` needs embedded or redis:// "
            "for the tiers whose replicas it starts"
        )


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
