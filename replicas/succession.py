"""When a replica that is to go may go: one that serves stays until another of its tier has taken its place.

Serve ends the replicas of an old version as soon as those of the new one run, and for it they run while their engines
still load. So an upgrade's old replicas leave one by one, as the new ones become ready. A tier that shrinks has
others that are ready, and who leaves then need not wait.
"""

import asyncio
import time
from collections.abc import Iterable

from replicas.supervisor import Supervisor
from state_store.protocol import StateStore, StateStoreUnavailable
from state_store.records import REPLICAS, ReplicaRecord

SYSTEM, ENDING = "system", "ending"
"""Where `graceway up` says that everything ends, so that nobody waits for a successor."""
NOBODY_COMES_S = 15.0
"""Without any successor under way for that long, there will be none: the tier goes to zero, or no node has room."""
LONGEST_S = 330.0
_LOOK_EVERY_S = 0.25


def may_leave(replica: str, of_tier: Iterable[ReplicaRecord], waited_s: float) -> bool:
    """Whether `replica`, which leaves, is not needed any more; `of_tier` are the records of its tier, its own too."""
    records = list(of_tier)
    staying = [r for r in records if not r.is_leaving and r.state != "draining"]
    ready = sum(r.state == "ready" for r in staying)
    leaving = sorted(r.replica for r in records if r.is_leaving and r.state == "ready")
    if replica not in leaving or leaving.index(replica) < ready:
        return True
    return len(staying) == ready and waited_s >= NOBODY_COMES_S


async def until_replaced(supervisor: Supervisor, store: StateStore) -> None:
    """Has a replica serve on until it may leave; not for longer than a successor may take to start."""
    if not supervisor.is_ready:
        return
    supervisor.leave()
    began_at = time.monotonic()
    while (waited_s := time.monotonic() - began_at) < LONGEST_S:
        try:
            if await store.get(SYSTEM, ENDING) is not None:
                return
            raws = await store.scan(REPLICAS)
        except StateStoreUnavailable:
            return
        me = supervisor.record()
        records = [r for r in map(ReplicaRecord.from_bytes, raws.values()) if r is not None]
        of_tier = [r for r in records if (r.model, r.tier) == (me.model, me.tier) and r.replica != me.replica]
        if may_leave(me.replica, [*of_tier, me], waited_s):
            return
        await asyncio.sleep(_LOOK_EVERY_S)
