"""`graceway plan mig`: from a file that says which models must be carried to slices, commands and a mig-parted config.

```yaml
gpu: h200
gpus: 8
models:
  - {name: chat, model: models/chat, context_tokens: 8192, concurrency: 64, slo: {itl_s: 0.05}, min_replicas: 2}
  - {name: small, weights_gib: 1.2, kv_bytes_per_token: 24576, context_tokens: 4096, concurrency: 200}
current:                      # what stands now, GPU by GPU; left out, nothing does
  - ["4g.71gb:0=chat", "3g.71gb:4"]
```
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError
from rich.table import Table

from deploy.config import ConfigError
from deploy.config_faults import schema_problems
from deploy.yaml_lines import Problem, read_document
from gateway.specs import Seconds, Share, Spec
from replicas.mig.discovery import Gpu
from replicas.mig.geometry import GIB, Geometry, UnknownProfile, geometry_of
from replicas.mig.layout import Placement
from replicas.mig.need import Need, Reach, Slo, UnknownModel, config_of, kv_bytes_per_token, weight_bytes
from replicas.mig.planner import Plan, plan
from replicas.mig.transition import Standing, Transition

Tokens = Annotated[int, Field(ge=1)]


class SloSpec(Spec):
    """Seconds to the first token, and between two; left out, anything will do."""

    ttft_s: Seconds | None = None
    itl_s: Seconds | None = None


class ModelSpec(Spec):
    """A model with its load: sizes from its folder, or told."""

    name: str
    model: str | None = None
    weights_gib: Annotated[float, Field(gt=0)] | None = None
    active_weights_gib: Annotated[float, Field(gt=0)] | None = None
    kv_bytes_per_token: Tokens | None = None
    kv_dtype: str = "auto"
    context_tokens: Tokens
    prompt_tokens: Annotated[int, Field(ge=0)] = 0
    concurrency: Tokens
    slo: SloSpec = SloSpec()
    min_replicas: Tokens = 1


class MigSpec(Spec):
    """The file."""

    gpu: str
    gpus: Annotated[int, Field(ge=1, le=64)] = 1
    models: Annotated[tuple[ModelSpec, ...], Field(strict=False, min_length=1)]
    current: Annotated[tuple[Annotated[tuple[str, ...], Field(strict=False)], ...], Field(strict=False)] = ()
    memory: Share = Reach().memory
    bandwidth: Share = Reach().bandwidth
    flops: Share = Reach().flops


def load_mig_spec(path: Path) -> MigSpec:
    """The file, or ConfigError with every fault by its line."""
    document = read_document(path, {})
    problems = document.problems
    if not problems:
        try:
            return MigSpec.model_validate(document.data)
        except ValidationError as error:
            problems = schema_problems(error, document, MigSpec)
    raise ConfigError(str(path), tuple(sorted(problems, key=lambda p: p.line)))


def planned(spec: MigSpec, path: Path) -> Plan:
    """The plan. Raises `NoPlan`, and ConfigError for what the file names and can't be found."""
    reach = Reach(memory=spec.memory, bandwidth=spec.bandwidth, flops=spec.flops)
    try:
        needs = [_need(model) for model in spec.models]
        return plan(needs, geometry_of(spec.gpu), spec.gpus, reach)
    except (UnknownModel, UnknownProfile) as error:
        raise _refusal(path, str(error)) from None


def _need(model: ModelSpec) -> Need:
    return Need(
        name=model.name,
        weights_bytes=_weights_bytes(model),
        kv_bytes_per_token=_kv_bytes(model),
        context_tokens=model.context_tokens,
        concurrency=model.concurrency,
        slo=Slo(**{k: v for k, v in model.slo.model_dump().items() if v is not None}),
        prompt_tokens=model.prompt_tokens,
        active_weights_bytes=_gib(model.active_weights_gib) if model.active_weights_gib else None,
        min_replicas=model.min_replicas,
    )


def _weights_bytes(model: ModelSpec) -> int:
    if model.weights_gib is not None:
        return _gib(model.weights_gib)
    return weight_bytes(_folder(model, "weights_gib"))


def _kv_bytes(model: ModelSpec) -> int:
    if model.kv_bytes_per_token is not None:
        return model.kv_bytes_per_token
    return kv_bytes_per_token(config_of(_folder(model, "kv_bytes_per_token")), model.kv_dtype)


def _folder(model: ModelSpec, key: str) -> Path:
    if model.model is None:
        raise UnknownModel(
            f"{model.name} has neither `model`, a folder with config.json and weights, nor `{key}`"
        )
    return Path(model.model)


def _gib(gib: float) -> int:
    return int(gib * GIB)


def _refusal(path: Path, what: str) -> ConfigError:
    return ConfigError(str(path), (Problem(0, what, "Correct the file."),))


def standing_of(spec: MigSpec, path: Path) -> list[list[Standing]]:
    """What the file says stands now, on as many GPUs as there are."""
    try:
        current = [[_standing(text) for text in gpu] for gpu in spec.current]
    except ValueError:
        raise _refusal(
            path, "`current` takes slices such as 3g.71gb:4=chat, or 3g.71gb:4 when idle"
        ) from None
    return current + [[] for _ in range(spec.gpus - len(current))]


def _standing(text: str) -> Standing:
    place, _, model = text.partition("=")
    profile, start = place.split(":")
    return Standing(Placement(int(start), profile), model or None)


def standing_on(gpus: Sequence[Gpu], path: Path) -> list[list[Standing]]:
    """What this node's driver says stands now; nobody knows which model runs on it, so each counts as a replica's."""
    if any(s.start is None for gpu in gpus for s in gpu.slices):
        raise _refusal(path, "the driver tells where slices start only to root")
    return [
        [Standing(Placement(s.start or 0, s.profile), "?", s.instance_id) for s in gpu.slices] for gpu in gpus
    ]


def as_table(made: Plan, steps: Transition) -> Table:
    """For a terminal: a row for each slice, on the GPU where it ends up."""
    carries = {(a.model, a.placement.profile): a.capacity for gpu in made.gpus for a in gpu}
    table = Table("GPU", "slice", "", "model", "slots", "KV tokens", "weight")
    for gpu in steps.gpus:
        kept = {w.placement for w in gpu.kept}
        slices = sorted((*gpu.kept, *gpu.created), key=lambda w: w.placement)
        for index, slice_ in enumerate(slices):
            capacity = carries[slice_.model, slice_.placement.profile]
            table.add_row(
                str(gpu.gpu) if index == 0 else "",
                str(slice_.placement),
                "stays" if slice_.placement in kept else "new",
                slice_.model,
                str(capacity.slots),
                f"{capacity.kv_tokens:,}",
                f"{capacity.weight:.0f}",
                end_section=index == len(slices) - 1,
            )
    return table


def summary(made: Plan, spec: MigSpec, geometry: Geometry) -> str:
    """One line: what it takes and what is left."""
    gpus, memory, compute, replicas = made.cost
    measured = "" if geometry.is_measured else f"; the memory of {geometry.gpu}'s slices is an estimate"
    return (
        f"{replicas} replicas on {gpus} of {spec.gpus} × {geometry.gpu}: "
        f"{memory} of {8 * gpus} memory slices, {compute} of {7 * gpus} compute slices{measured}"
    )
