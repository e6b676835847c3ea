"""How durable a turn is when its answer ends: what its tier does with the KV blocks, and under `sync` whether it is done."""

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from gateway.leg import Leg
from gateway.specs import KvSpec
from state_store.kv.turn import PARAMETER, STORED, TURNS, is_kept
from state_store.protocol import StateStore, StateStoreUnavailable

PATIENCE_S = 0.5
"""How long an answer waits for its end at most: the store may be slow, or gone."""
_FIRST_LOOK_S, _LAST_LOOK_S = 0.005, 0.05
UNCONFIRMED = "unconfirmed"
UNCONFIRMED_FRAME = b": kv durability unconfirmed\n\n"
"""A comment, which clients of event streams pass over: the stream's headers were sent before anybody knew."""


def promised(kv: KvSpec, body: Mapping[str, Any]) -> str:
    """What is said of a turn as it begins; empty where nothing is kept, or the caller wants nothing of it kept."""
    return kv.strategy if kv.strategy != "recompute" and is_kept(body.get("kv_transfer_params")) else ""


def name_turn(leg: Leg, kv: KvSpec) -> str:
    """Has the engine acknowledge the end of this leg under a name that nobody else uses; empty where nobody waits."""
    if kv.strategy != "sync":
        return ""
    given = leg.body.get("kv_transfer_params")
    if not is_kept(given):
        return ""
    turn = uuid4().hex
    leg.body["kv_transfer_params"] = {**(given if isinstance(given, dict) else {}), PARAMETER: turn}
    return turn


async def until_stored(store: StateStore, turn: str) -> bool:
    """Whether the engine says in time that all blocks of the turn are stored."""
    loop = asyncio.get_running_loop()
    deadline, wait_s = loop.time() + PATIENCE_S, _FIRST_LOOK_S
    try:
        while await store.get(TURNS, turn) != STORED:
            if loop.time() + wait_s > deadline:
                return False
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LAST_LOOK_S)
    except StateStoreUnavailable:
        return False
    return True
