"""An engine's log: its end, its milestones, its bound."""

from pathlib import Path

from replicas import engine_log
from replicas.engine_log import EngineLog


def test_milestones_are_told_once(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "log")
    log.begin()
    assert log.milestones() == []
    with log.path.open("a") as file:
        file.write("INFO Starting to load model x...\nINFO Loading weights took 2 seconds\n")
    assert log.milestones() == ["loading weights", "weights loaded"]
    assert log.milestones() == []


def test_the_tail_is_bounded_and_there_without_a_file(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "log")
    assert log.tail() == ""
    log.path.write_text("x" * 1_000_000 + "\nlast")
    assert log.tail().endswith("\nlast")
    assert len(log.tail()) < 100_000


def test_a_log_that_grew_too_long_is_emptied(tmp_path: Path) -> None:
    log = EngineLog(tmp_path / "log")
    log.path.write_bytes(b"x" * (engine_log._MOST_BYTES + 1))
    log.trim()
    assert log.path.stat().st_size == 0
    log.path.write_bytes(b"short")
    log.trim()
    assert log.path.read_bytes() == b"short"
