"""An engine's log file: bounded, its last words, and its milestones as words for people."""

from pathlib import Path

_MOST_BYTES = 16 * 1024 * 1024
_TAIL_BYTES = 16 * 1024

_MILESTONES = (
    ("Initializing a V1 LLM engine", "starting the engine"),
    ("Starting to load model", "loading weights"),
    ("Loading weights took", "weights loaded"),
    ("Warming up model", "warming up"),
    ("KV cache size", "KV cache ready"),
    ("Application startup complete", "server up"),
)


class EngineLog:
    """The file that an engine's output is appended to. It is read from the end, and emptied when it grows too
    long.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_up_to = 0

    def begin(self) -> None:
        """Empties it for an engine's next start."""
        self.path.write_bytes(b"")
        self._read_up_to = 0

    def tail(self) -> str:
        """Its last lines."""
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")

    def milestones(self) -> list[str]:
        """What has been reached since the last look."""
        with self.path.open("rb") as file:
            file.seek(self._read_up_to)
            fresh = file.read()
            self._read_up_to = file.tell()
        text = fresh.decode(errors="replace")
        return [words for sign, words in _MILESTONES if sign in text]

    def trim(self) -> None:
        """Keeps the disk free over weeks; the engine appends, so it goes on at the new end."""
        if self.path.exists() and self.path.stat().st_size > _MOST_BYTES:
            self.begin()
