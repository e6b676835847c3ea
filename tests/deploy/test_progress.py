"""What `graceway up` tells, from literal records and reports."""

from typing import Any

from deploy.config import Config
from deploy.progress import Progress, ready_lines
from state_store.records import ReplicaRecord

CONFIG = Config.model_validate_json(
    '{"models": {"chat": {"tiers": [{"name": "best", "backend": "vllm", "model": "m"}]}, '
    '"other": {"tiers": [{"name": "canned", "backend": "canned", "text": "x"}]}}}'
)


def record(state: str, reason: str = "") -> dict[str, ReplicaRecord]:
    return {"r-1": ReplicaRecord("r-1", "chat", "best", "http://h:1", "m", state, reason, "", 1, 1.0, 0.0)}


def report(best: bool, small: bool = False) -> dict[str, Any]:
    tiers = [
        {"name": "best", "backend": "vllm", "serving": best},
        {"name": "small", "backend": "llamacpp", "serving": small},
        {"name": "canned", "backend": "canned", "serving": True},
    ]
    return {
        "models": {
            "chat": {"tiers": tiers},
            "other": {"tiers": [{"name": "canned", "backend": "canned", "serving": True}]},
        }
    }


def test_each_state_is_told_once_and_again_while_it_lasts() -> None:
    progress = Progress(CONFIG)
    assert list(progress.of_replicas(1.0, record("starting", "loads"))) == ["chat/best r-1: starting (loads)"]
    assert list(progress.of_replicas(10.9, record("starting", "loads"))) == []
    assert list(progress.of_replicas(11.0, record("starting", "loads"))) == [
        "chat/best r-1: still starting (10 s) (loads)"
    ]
    assert list(progress.of_replicas(31.0, record("ready"))) == ["chat/best r-1: ready after 30 s"]
    assert list(progress.of_replicas(99.0, record("ready"))) == []
    assert list(progress.of_replicas(100.0, record("down", "killed"))) == [
        "chat/best r-1: down after 69 s (killed)"
    ]
    assert list(progress.of_replicas(101.0, {})) == ["r-1: gone"]


def test_a_lower_tier_that_answers_first_is_told_once() -> None:
    progress = Progress(CONFIG)
    assert list(progress.of_status({})) == []
    assert list(progress.of_status(report(best=False))) == []
    assert list(progress.of_status(report(best=False, small=True))) == [
        "chat answers already, degraded, from tier small; best follows"
    ]
    assert list(progress.of_status(report(best=False, small=True))) == []
    assert not progress.is_ready


def test_ready_is_when_every_model_has_its_best_tier() -> None:
    progress = Progress(CONFIG)
    assert list(progress.of_status(report(best=True))) == []
    assert progress.is_ready
    list(progress.of_status(report(best=False)))
    assert progress.is_ready


def test_the_command_to_try_names_the_first_model() -> None:
    address, _, command = ready_lines(CONFIG, "http://127.0.0.1:8000")
    assert address == "ready http://127.0.0.1:8000"
    assert command.startswith("  curl -s http://127.0.0.1:8000/v1/chat/completions ")
    assert '"model": "chat"' in command
