"""The faults of a soak: drawn at random, one at a time, each healed before the next."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.drill_acts import freeze_store, kill_store, reload, start_store, thaw_store
from loadtests.fleet import Fleet
from loadtests.processes import EngineProcess
from loadtests.trial import Act


@dataclass(frozen=True, slots=True)
class SoakFault:
    """`act` and `heal` take the fleet and the replica that was drawn."""

    name: str
    act: Act
    heal: Act


def draw(rng: random.Random, fleet: Fleet) -> SoakFault:
    """The next fault."""
    replica = rng.choice(fleet.replicas)
    return rng.choice([*_switched(replica), *_of_the_process(replica), *_of_the_store()])


def _switched(replica: EngineProcess) -> Sequence[SoakFault]:
    kinds: dict[str, dict[str, object]] = {
        "slow": {"factor": 10},
        "error": {"status": 500},
        "cut": {"after_tokens": 15},
        "hang": {"after_tokens": 10},
        "malformed": {"after_tokens": 10},
        "error_event": {"after_tokens": 10},
        "no_tokens": {},
        "unhealthy": {},
    }
    full = {"kind": "error", "status": 503, "share": 0.5}
    faults = [_switch(replica, kind, {"kind": kind, **details}) for kind, details in kinds.items()]
    return [*faults, _switch(replica, "full", full)]


def _switch(replica: EngineProcess, name: str, fault: dict[str, object]) -> SoakFault:
    async def act(_: Fleet) -> None:
        await replica.fault(**fault)  # type: ignore[arg-type]

    async def heal(_: Fleet) -> None:
        await replica.fault("none")

    return SoakFault(name, act, heal)


def _of_the_process(replica: EngineProcess) -> Sequence[SoakFault]:
    async def kill(_: Fleet) -> None:
        await replica.kill()

    async def restart(_: Fleet) -> None:
        await replica.restart()

    async def freeze(_: Fleet) -> None:
        replica.freeze()

    async def thaw(_: Fleet) -> None:
        replica.thaw()

    return [SoakFault("killed", kill, restart), SoakFault("frozen", freeze, thaw)]


def _of_the_store() -> Sequence[SoakFault]:
    async def reload_twice(fleet: Fleet) -> None:
        await reload(fleet)
        await reload(fleet)

    async def nothing(_: Fleet) -> None:
        return None

    return [
        SoakFault("store killed", kill_store, start_store),
        SoakFault("store frozen", freeze_store, thaw_store),
        SoakFault("reload", reload_twice, nothing),
    ]
