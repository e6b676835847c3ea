"""What the scheduler's side tells the worker's side in a step, and what it hears back. Plain data, picklable."""

from dataclasses import dataclass, field

MOST_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class Transfer:
    """Blocks of one request to load or save: where they lie in the cache, and what they are called."""

    request: str
    hashes: tuple[bytes, ...]
    block_ids: tuple[int, ...]
    depth: int
    """How many blocks of the request come before the first."""
    patience_s: float = MOST_PATIENCE_S
    """For a load: longer than it takes to compute the blocks, nobody waits for them."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that is over, whose blocks stay until they were copied. `turn` is to be acknowledged, unless empty."""

    request: str
    turn: str = ""


@dataclass(slots=True)
class StepPlan:
    """One step's transfers."""

    loads: list[Transfer] = field(default_factory=list)
    saves: list[Transfer] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    preempted: frozenset[str] = frozenset()
    """Requests whose blocks are about to be overwritten."""
    is_idle: bool = False
    """Nothing is computed in this step: a load that is under way may be waited for."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """How a load went."""

    size_bytes: int
    seconds: float
    failed_blocks: int
