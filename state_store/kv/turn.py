"""What a request says of its turn's blocks, and how the engine tells that they are stored: by a mark in the state store."""

from collections.abc import Mapping

from state_store.redis import value_key

TURNS = "kv-turns"
"""The group under which the gateway finds it."""
TURN_TTL_S = 60.0
STORED = b"stored"
PARAMETER = "graceway_turn"
"""In a request's `kv_transfer_params`: the turn's name, where its end is to be acknowledged."""
KEEP = "graceway_keep"
"""In the same place: false for a prompt whose blocks are neither stored nor looked for."""


def is_kept(parameters: object) -> bool:
    """Whether a request's `kv_transfer_params`, if it has any, leave its blocks to be kept."""
    return not isinstance(parameters, Mapping) or parameters.get(KEEP) is not False


def turn_key(turn: str) -> bytes:
    """The mark's key, as the state store's `get(TURNS, turn)` reads it."""
    return value_key(TURNS, turn).encode()
