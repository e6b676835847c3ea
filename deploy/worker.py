"""One process of `graceway serve --workers N`: CONFIG HOME HOST PORT GRPC_PORT READY_FD PARENT_PID; the store's URL comes in
the environment, where other users of the machine can't read it.
"""

import os
import sys
from pathlib import Path

from deploy import handover
from deploy.config import ConfigError
from deploy.config_source import ParentsFile
from deploy.http_server import listening_socket
from deploy.serve import run_worker
from deploy.workers import end_with_parent


def main(arguments: list[str]) -> int:
    path, home, host, port, grpc_port, ready_fd, parent = arguments
    end_with_parent(int(parent))
    source = ParentsFile(Path(path), Path(home), int(parent))
    try:
        config, standing = source.kept()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    with listening_socket(host, int(port)) as sock:
        store_url = handover.store_url()
        run_worker(
            source, config, standing, sock, int(grpc_port), store_url, lambda: _say_ready(int(ready_fd))
        )
    return 0


def _say_ready(fd: int) -> None:
    os.write(fd, b"r")
    os.close(fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
