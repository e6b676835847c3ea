"""Where a Serve replica listens for the cluster's own calls.

Serve binds that port, which takes pickled calls, on every interface of the machine, even when Ray itself is kept to
loopback, and has no setting for it.
"""

import os


def is_alone() -> bool:
    """Whether this replica's Ray is one machine's own, kept to loopback."""
    return os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") == "0"


def engine_host() -> str:
    """Where an engine of this node listens: in a cluster, where gateways on other nodes reach it."""
    if is_alone():
        return "127.0.0.1"
    import ray

    return str(ray.util.get_node_ip_address())


def zone() -> str:
    """Of this node, as it was started with: a label of Ray's, or the environment's word."""
    import ray

    labels = ray.get_runtime_context().get_node_labels()
    return str(labels.get("ray.io/availability-zone") or os.environ.get("GRACEWAY_ZONE", ""))


def keep_to_loopback() -> None:
    """Has this replica, before it opens that port, open it on loopback if its Ray is one machine's own."""
    if not is_alone():
        return
    from ray.serve._private import replica

    add_port = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, address: add_port(
        server, address.replace("[::]", "127.0.0.1")
    )
