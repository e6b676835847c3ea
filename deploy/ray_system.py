"""The Ray side of `graceway up`, in a process of its own: HOME.

It starts Ray (or joins the cluster at RAY_ADDRESS), deploys the Serve application and then waits. What it reaches
it appends to HOME/phases, a word a line, for whoever started it. SIGHUP re-reads the config in HOME, which is a validated copy;
SIGTERM takes the application down in good order and ends the process.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import ray
from ray import serve
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.schema import LoggingConfig

from deploy import handover
from deploy.config import Config, load_config
from deploy.config_source import COPY, NOTE
from deploy.serve_app import APPLICATION, application

OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""No data goes through Ray's object store, so it gets about the least that Ray accepts."""

_LOOK_S = 1.0
_KEEP_ALIVE_S = 75
"""Of HAProxy's connections to a gateway."""
_END_S = 30.0


def main(arguments: list[str]) -> int:
    home = Path(arguments[0])
    store_url = handover.store_url()
    config = load_config(home / COPY)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    address = os.environ.get("RAY_ADDRESS")
    _connect(address, home)
    _say(home, "ray")
    _start_serve(config, is_joined=bool(address))
    _say(home, "serve")
    _deploy(config, store_url, home)
    _say(home, "deployed")
    if not _wait(home, store_url, _servers()):
        sys.stderr.write("one of Ray's own servers ended\n")
        return 1
    _end_serve()
    ray.shutdown()
    return 0


def _connect(address: str | None, home: Path) -> None:
    if address:
        variables = {name: value for name, value in os.environ.items() if name.startswith("RAY_SERVE_")}
        ray.init(
            address=address, runtime_env={"env_vars": variables}, log_to_driver=False, logging_level="WARNING"
        )
        return
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level="WARNING",
        object_store_memory=OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(home / "ray"),
    )


def _start_serve(config: Config, is_joined: bool) -> None:
    # Gateways listen there, too: in a cluster, HAProxies on other nodes must reach them.
    host = config.server.host if is_joined else "127.0.0.1"
    serve.start(
        http_options={"host": host, "port": config.server.port, "keep_alive_timeout_s": _KEEP_ALIVE_S},
        logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
    )


def _deploy(config: Config, store_url: str, home: Path) -> None:
    standing = (home / NOTE).read_text()
    target = serve.RunTarget(application(config, store_url, standing), name=APPLICATION, route_prefix="/")
    serve.run_many([target], wait_for_applications_running=False)


def _servers() -> list[psutil.Process]:
    """Those of Ray's processes without which it is lost, and which it does not replace; none when it is joined."""
    children = psutil.Process().children()
    return [process for process in children if process.name() in ("raylet", "gcs_server")]


def _wait(home: Path, store_url: str, servers: list[psutil.Process]) -> bool:
    """Until SIGTERM (then True), or until one of Ray's servers is gone; each SIGHUP deploys the config anew,
    by which Serve changes only what differs.
    """
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    while all(_runs(server) for server in servers):
        received = signal.sigtimedwait(signals, _LOOK_S)
        if received is None:
            continue
        if received.si_signo != signal.SIGHUP:
            return True
        _deploy(load_config(home / COPY), store_url, home)
    return False


def _runs(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


def _end_serve() -> None:
    """Returns when Serve's controller has ended, and with it all that it ran, or after a while."""
    serve.shutdown()
    deadline = time.monotonic() + _END_S
    with suppress(ValueError):
        while time.monotonic() < deadline:
            ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
            time.sleep(0.05)


def _say(home: Path, phase: str) -> None:
    with (home / "phases").open("a") as file:
        file.write(f"{phase}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
