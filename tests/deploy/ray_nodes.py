"""Several Ray nodes on one machine, each with an address and a zone of its own: prints where they are, as JSON.

Runs until its standard input ends. Ray's Cluster remembers its nodes in the process that starts them, so this is one.
"""

import json
import sys

from ray.cluster_utils import Cluster

OBJECT_STORE_BYTES = 80 * 1024 * 1024


def main(count: int) -> None:
    cluster = Cluster()
    nodes = []
    for number in range(1, count + 1):
        node = cluster.add_node(
            node_ip_address=f"127.0.0.{10 + number}",
            labels={"ray.io/availability-zone": f"zone-{number}"},
            num_cpus=2,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
        )
        [raylet] = node.all_processes["raylet"]
        nodes.append({"host": node.node_ip_address, "raylet": raylet.process.pid})
    print(json.dumps({"address": cluster.address, "nodes": nodes}), flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
