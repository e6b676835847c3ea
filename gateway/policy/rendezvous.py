"""Rendezvous hashing: every gateway ranks the same replicas for a session alike, without talking to the others."""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import xxhash

from gateway.policy.snapshot import ReplicaView, Routable


def digest(name: str) -> int:
    """A 64-bit hash that is the same in every process."""
    return xxhash.xxh3_64_intdigest(name.encode())


def weights(key: int, digests: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The weight of each replica for a key: SplitMix64's finalizer over the exclusive or of their digests."""
    x = digests ^ np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def ranked(key: int, replicas: Routable, count: int) -> list[ReplicaView]:
    """The `count` replicas of highest weight for the key, best first."""
    weight = weights(key, replicas.digests)
    # Only the top is put in order: a whole sort of a thousand costs more than the rest of a decision.
    start = max(0, len(weight) - count)
    top = np.argpartition(weight, start)[start:] if start else np.arange(len(weight))
    return [replicas[int(i)] for i in sorted(top, key=weight.__getitem__, reverse=True)]


def choices(key: int, replicas: Routable, lost: Collection[str] = ()) -> list[ReplicaView]:
    """The first choice for the key and its standby: those of highest weight, in different zones where there are several.

    `lost` are zones in which it has lost a replica: they come last. So whoever loses the first choice, zone and all,
    finds the standby to be the first.
    """
    by_zone = replicas.by_zone()
    if len(by_zone) < 2:
        return ranked(key, replicas, 2)
    weight = weights(key, replicas.digests)
    heaviest = [int(places[weight[places].argmax()]) for places in by_zone.values()]
    heaviest.sort(key=lambda place: (replicas[place].zone in lost, -int(weight[place])))
    return [replicas[place] for place in heaviest[:2]]
