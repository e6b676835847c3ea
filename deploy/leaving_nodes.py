"""Which nodes of a cluster will be taken away, so that nothing new is started there.

A notice lies in the state store, which Serve's controller does not know. So a replica that has heard one says so in Ray's
own key-value store, where the controller looks.
"""

import time

from ray.experimental import internal_kv

_NAMESPACE = "graceway"
_PREFIX = "leaving:"


def announce(node: str, for_s: float) -> None:
    """Has `leaving` name that node of Ray's for so long."""
    until = time.time() + for_s
    internal_kv._internal_kv_put(f"{_PREFIX}{node}", repr(until), namespace=_NAMESPACE)


def leaving() -> frozenset[str]:
    """Their ids."""
    if not internal_kv._internal_kv_initialized():
        return frozenset()
    now = time.time()
    return frozenset(
        key.decode().removeprefix(_PREFIX)
        for key in internal_kv._internal_kv_list(_PREFIX, namespace=_NAMESPACE)
        if float(internal_kv._internal_kv_get(key, namespace=_NAMESPACE) or 0.0) > now
    )
