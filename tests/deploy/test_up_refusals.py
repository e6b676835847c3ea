"""What `graceway up` refuses before it starts anything on a cluster."""

from pathlib import Path

import pytest

from deploy.config import load_config
from deploy.up import EXIT_WRONG_CONFIG, bring_up

CONFIG = """
server: {{host: {host}, port: 8000}}
state_store: {{url: "{store}"}}
{admin}
models: {{chat: {{tiers: [{{backend: canned}}]}}}}
"""
ADMIN = "admin_key: secret"


@pytest.mark.parametrize(
    ("host", "store", "admin", "says"),
    [
        ("127.0.0.1", "redis://r:1", ADMIN, "set server.host to 0.0.0.0"),
        ("0.0.0.0", "redis://r:1", "", "set admin_key"),
        ("0.0.0.0", "embedded", ADMIN, "use redis://HOST:PORT"),
    ],
)
def test_a_config_that_no_cluster_can_run_is_refused(
    host: str,
    store: str,
    admin: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG.format(host=host, store=store, admin=admin))
    assert bring_up(path, load_config(path)) == EXIT_WRONG_CONFIG
    assert says in capsys.readouterr().err
