"""Several Ray nodes on one machine, each with an address of its own and one GPU, as far as Ray counts, in the zones named:
prints where they are, as JSON.

`python -m tests.deploy.ray_nodes a a b b`; the first is the head. Runs until its standard input ends. Ray's Cluster
remembers its nodes in the process that starts them, so this is one.
"""

import json
import sys

from ray.cluster_utils import Cluster

OBJECT_STORE_BYTES = 80 * 1024 * 1024


def main(zones: list[str]) -> None:
    cluster = Cluster()
    nodes = []
    for number, zone in enumerate(zones, 11):
        node = cluster.add_node(
            node_ip_address=f"127.0.0.{number}",
            labels={"ray.io/availability-zone": zone},
            num_cpus=2,
            num_gpus=1,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
        )
        [raylet] = node.all_processes["raylet"]
        nodes.append({"host": node.node_ip_address, "zone": zone, "raylet": raylet.process.pid})
    print(json.dumps({"address": cluster.address, "nodes": nodes}), flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
