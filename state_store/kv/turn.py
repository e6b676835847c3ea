"""How the engine tells the gateway that a turn's blocks are stored: a mark in the state store, by the turn's name."""

from state_store.redis import value_key

TURNS = "kv-turns"
"""The group under which the gateway finds it."""
TURN_TTL_S = 60.0
STORED = b"stored"
PARAMETER = "graceway_turn"
"""In a request's `kv_transfer_params`: the turn's name, where its end is to be acknowledged."""


def turn_key(turn: str) -> bytes:
    """The mark's key, as the state store's `get(TURNS, turn)` reads it."""
    return value_key(TURNS, turn).encode()
