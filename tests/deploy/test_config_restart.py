"""Which keys only a restart applies: all are classified, and each is told when it is another one in the file."""

from pathlib import Path

import pytest

from deploy.config import Config, load_config
from deploy.config_restart import RELOAD, RESTART, Runner, keys_of, needs_restart
from gateway.specs import Spec

BASE = "models: {chat: {tiers: [{backend: canned, text: T}]}}\n"
KEYS = "keys: [{name: one, sha256: " + 64 * "a" + "}]\n"
KV = "models: {chat: {tiers: [{backend: vllm, model: m, kv: {strategy: sync, budget_bytes: BYTES}}]}}\n"


def config(folder: Path, text: str) -> Config:
    path = folder / "c.yaml"
    path.write_text(text)
    return load_config(path)


def test_every_key_of_the_schema_is_classified_once() -> None:
    in_schema = {
        key
        for name, field in Config.model_fields.items()
        for key in (
            [f"{name}.{inner}" for inner in type(field.default).model_fields]
            if isinstance(field.default, Spec)
            else [name]
        )
    }
    assert in_schema == RELOAD | RESTART
    assert not RELOAD & RESTART


def test_every_key_is_compared(tmp_path: Path) -> None:
    assert set(keys_of(config(tmp_path, BASE))) == RELOAD | RESTART


@pytest.mark.parametrize(
    ("more", "runner", "told"),
    [
        ("", "serve", ()),
        ("admin_key: x\nlimits: {max_headers: 9}\ntracing: {ratio: 0.1}\n", "serve", ()),
        ("server: {port: 1}\n", "serve", ("server.port",)),
        ("server: {port: 1, grpc_port: 2}\n", "serve", ("server.port", "server.grpc_port")),
        ("server: {port: 1, grpc_port: 2}\n", "up", ("server.port",)),
        ("server: {gateways: 3}\n", "up", ()),
        ("state_store: {url: memory}\nlog: {level: debug}\n", "serve", ("state_store.url", "log.level")),
        ("log: {format: json, requests: true}\n", "up", ("log.format", "log.requests")),
        # Without keys it listens on loopback, whatever the file says: so a first key changes the address.
        ("server: {host: 0.0.0.0}\n", "up", ()),
        ("server: {host: 0.0.0.0}\n" + KEYS, "serve", ("server.host",)),
    ],
)
def test_what_is_told(tmp_path: Path, more: str, runner: Runner, told: tuple[str, ...]) -> None:
    assert needs_restart(config(tmp_path, BASE), config(tmp_path, BASE + more), runner) == told


@pytest.mark.parametrize(("before", "after", "told"), [(2, 2, ()), (4, 2, ()), (2, 4, ("kv.budget_bytes",))])
def test_an_embedded_store_does_not_grow(
    tmp_path: Path, before: int, after: int, told: tuple[str, ...]
) -> None:
    running, new = (config(tmp_path, KV.replace("BYTES", str(n << 20))) for n in (before, after))
    assert needs_restart(running, new) == told
