"""Why an engine ended, from how its process ended and what it said last."""

import re
import signal
from dataclasses import dataclass
from typing import Literal

ExitKind = Literal[
    "stopped", "oom", "killed", "crashed", "bad_config", "port_taken", "hung", "wrong", "ended"
]

_CRASH_SIGNALS = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
_COULD_NOT_START = 127
_USAGE_ERROR = 2

# In order: the first that matches the log names the kind. A crash report quotes freely, so the precise ones
# come first.
_LOG_SIGNS: tuple[tuple[ExitKind, re.Pattern[str]], ...] = (
    ("port_taken", re.compile(r"address already in use|errno 98|couldn't bind", re.IGNORECASE)),
    ("oom", re.compile(r"out ?of ?memory|\bMemoryError\b|cannot allocate memory|bad_alloc", re.IGNORECASE)),
    (
        "bad_config",
        re.compile(
            r"unrecognized arguments|invalid choice|validation error for|no such file or directory"
            r"|failed to load model|is not a valid model|repository not found|is not a local folder"
            r"|no usable (?:kv cache|available memory)|max seq len .* larger than|unsupported",
            re.IGNORECASE,
        ),
    ),
)
_NOISE = re.compile(r"^\s*(?:File |\^|~|$)")
_SAYS_WHY = re.compile(r"error|exception|failed|fatal|assert|abort", re.IGNORECASE)
_LONGEST_QUOTE = 200


@dataclass(frozen=True, slots=True)
class ExitReason:
    """Why an engine ended, as a kind to count by and a text to read."""

    kind: ExitKind
    text: str


def classify(code: int, log_tail: str, *, was_asked: bool = False, oom_kills: int = 0) -> ExitReason:
    """The reason behind exit `code` (negative for a signal), by the last lines of the log.

    `was_asked`: we told it to stop. `oom_kills`: processes that the kernel killed for memory while it ran.
    """
    if was_asked:
        return ExitReason("stopped", "stopped on request")
    if oom_kills > 0 and code != 0:
        return ExitReason("oom", "killed by the kernel: out of memory")
    if code < 0:
        return _from_signal(-code, log_tail)
    if code == 0:
        return ExitReason("ended", "ended by itself without an error")
    return _from_log(code, log_tail)


def _from_signal(number: int, log_tail: str) -> ExitReason:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number in _CRASH_SIGNALS:
        return ExitReason("crashed", _with_quote(f"crashed with {name}", log_tail))
    return ExitReason("killed", f"killed by {name}")


def _from_log(code: int, log_tail: str) -> ExitReason:
    for kind, sign in _LOG_SIGNS:
        for line in reversed(log_tail.splitlines()):
            if sign.search(line):
                return ExitReason(kind, f"exit status {code}: {_shorten(line)}")
    if code in (_USAGE_ERROR, _COULD_NOT_START):
        return ExitReason("bad_config", _with_quote(f"exit status {code}", log_tail))
    return ExitReason("crashed", _with_quote(f"exit status {code}", log_tail))


def _with_quote(text: str, log_tail: str) -> str:
    lines = [line for line in log_tail.splitlines() if not _NOISE.match(line)]
    telling = [line for line in lines if _SAYS_WHY.search(line)] or lines
    return f"{text}: {_shorten(telling[-1])}" if telling else text


def _shorten(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _LONGEST_QUOTE else line[: _LONGEST_QUOTE - 1] + "…"
