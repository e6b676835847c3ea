"""Lines reach their file whole and in order, and hold nobody up when they can't."""

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from gateway.line_writer import LineHandler, LineWriter
from gateway.log_lines import json_line, text_line


def until(condition: Callable[[], object], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def numbered(item: int) -> bytes:
    return b"%d %s\n" % (item, b"x" * (item % 700))


def test_all_lines_whole_and_in_order(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        writer = LineWriter(file.fileno())
        writer.start()
        for item in range(2000):
            writer.take(numbered, item)
        writer.stop()
    assert (tmp_path / "log").read_bytes() == b"".join(map(numbered, range(2000)))
    assert writer.dropped == 0


def test_a_stuck_pipe_costs_lines_and_nothing_else() -> None:
    reading, writing = os.pipe()
    writer = LineWriter(writing, waiting=100)
    writer.start()
    # More than the pipe holds, so that the thread is stuck in it.
    lines = 3000
    began_at = time.perf_counter()
    for item in range(lines):
        writer.take(numbered, item)
        if item % 50 == 0:
            time.sleep(0.001)
    assert time.perf_counter() - began_at < 5.0
    until(lambda: len(writer._waiting) >= 100 or writer.dropped)
    for item in range(lines):
        writer.take(numbered, item)
    assert writer.dropped >= lines - 100
    # What was written before is whole; and it goes on when somebody reads again.
    seen = os.read(reading, 1 << 20)
    assert seen.startswith(numbered(0) + numbered(1))
    os.close(reading)
    writer.stop()
    os.close(writing)


def test_nobody_reads(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    writer = LineWriter(writing)
    writer.start()
    writer.take(numbered, 1)
    until(lambda: writer.dropped == 1)
    writer.stop()
    os.close(writing)


def test_a_line_that_cannot_be_made_ends_no_other(tmp_path: Path) -> None:
    def broken(item: int) -> bytes:
        raise ValueError(item)

    with (tmp_path / "log").open("wb") as file:
        writer = LineWriter(file.fileno())
        writer.start()
        writer.take(broken, 1)
        writer.take(numbered, 2)
        writer.stop()
    assert (tmp_path / "log").read_bytes() == numbered(2)
    assert writer.dropped == 1


def test_records(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logger = logging.Logger("graceway.test")
    with path.open("wb") as file:
        writer = LineWriter(file.fileno())
        writer.start()
        logger.addHandler(LineHandler(writer, json_line))
        logger.info("a %s", "message", extra={"event": "breaker", "tier": "primary"})
        try:
            raise ValueError("of no use")
        except ValueError:
            logger.exception("it failed")
        logger.handlers[0].close()
    told, failed = map(json.loads, path.read_text().splitlines())
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "info", "logger": "graceway.test", "message": "a message", "event": "breaker", "tier": "primary",
    }  # fmt: skip
    assert failed["level"] == "error"
    assert "ValueError: of no use" in failed["exception"]


def test_records_in_words() -> None:
    record = logging.LogRecord("graceway.test", logging.WARNING, "", 0, "a %s", ("message",), None)
    assert text_line(record).endswith(b"WARNING graceway.test: a message\n")
