"""Where a Serve replica listens for the cluster's own calls.

Serve binds that port, which takes pickled calls, on every interface of the machine, even when Ray itself is kept to
loopback, and has no setting for it.
"""

import os


def keep_to_loopback() -> None:
    """Has this replica, before it opens that port, open it on loopback if its Ray is one machine's own."""
    if os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") != "0":
        return
    from ray.serve._private import replica

    add_port = replica.add_port_to_grpc_server
    replica.add_port_to_grpc_server = lambda server, address: add_port(
        server, address.replace("[::]", "127.0.0.1")
    )
