"""What Serve is told of a config: how many gateways and replicas, and what has which of them replaced."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.config import load_config

with warnings.catch_warnings():
    # Serve's own models use what pydantic has deprecated.
    warnings.simplefilter("ignore")
    from deploy.serve_app import application

CONFIG = """
server: {host: 127.0.0.1, port: 8000, grpc_port: 0, gateways: 1}
request_timeout_s: 100
models:
  chat:
    tiers:
      - {name: primary, backend: command, command: [run], served_model: m, scale: {min: 2, standbys: 0}}
      - {name: canned, backend: canned, text: Later.}
"""


@dataclass
class Told:
    """One deployment."""

    version: str
    config: Any
    actor: dict[str, Any]


def told(folder: Path, text: str) -> tuple[Told, Told]:
    """The gateway's deployment, and that of the tier's replicas."""
    path = folder / "c.yaml"
    path.write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gateway = application(load_config(path), "redis://r:1")._bound_deployment
        [tier] = gateway.init_args[1]
        return tuple(  # type: ignore[return-value]
            Told(d.version, d._deployment_config, d.ray_actor_options)
            for d in (gateway, tier._bound_deployment)
        )


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_one_gateway_more_than_there_are_to_be_is_started_first(tmp_path: Path, count: int) -> None:
    gateway, _ = told(tmp_path, CONFIG.replace("gateways: 1", f"gateways: {count}"))
    assert gateway.config.num_replicas == count
    # As Serve rounds it.
    assert (gateway.config.max_surge_percent * count + 99) // 100 == 1
    assert gateway.config.graceful_shutdown_timeout_s >= 100


@pytest.mark.parametrize(
    ("old", "new", "replaces"),
    [
        ("grpc_port: 0", "grpc_port: 9000", (True, False)),
        ("gateways: 1", "gateways: 2", (False, False)),
        ("text: Later.", "text: Soon.", (False, False)),
        ("command: [run]", "command: [go]", (False, True)),
        ("name: primary", "name: first", (True, True)),
    ],
)
def test_only_what_can_not_be_taken_over_is_replaced(
    tmp_path: Path, old: str, new: str, replaces: tuple[bool, bool]
) -> None:
    before, after = told(tmp_path, CONFIG), told(tmp_path, CONFIG.replace(old, new))
    assert tuple(a.version != b.version for a, b in zip(before, after, strict=True)) == replaces


def test_standbys_run_beside_those_that_serve(tmp_path: Path) -> None:
    _, tier = told(tmp_path, CONFIG.replace("standbys: 0", "standbys: 1"))
    assert tier.config.num_replicas == 3
    grows = CONFIG.replace("{min: 2, standbys: 0}", "{min: 2, max: 5, standbys: 1}")
    _, tier = told(tmp_path, grows)
    scaling = tier.config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (3, 6)


def test_all_ask_for_something_or_ray_puts_them_anywhere(tmp_path: Path) -> None:
    for deployment in told(tmp_path, CONFIG):
        assert 0 < deployment.actor["num_cpus"] < 0.01
