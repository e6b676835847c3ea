"""TLS towards a server: whose certificates count, and the certificate that is shown to it. Renewed files are noticed."""

import logging
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass

log = logging.getLogger("graceway.tls")

Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the authorities that count instead of the system's, and a certificate of one's own with its key."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None


NO_FILES = TlsFiles()
"""The system's authorities, and no certificate of one's own."""


class ClientTls:
    """One context for all connections to a server. `refresh` before each takes up files that were renewed meanwhile.

    An authority that is removed from the file counts until the process ends; its certificates can be added to.

    Raises:
        OSError: a file is not there, or not what it should be.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = stamp((files.ca, files.cert, files.key))
        self.context = _context(files)

    def refresh(self) -> None:
        """Takes up renewed files. Those that don't fit together, as in the middle of a renewal, are left for later."""
        files = self._files
        now = stamp((files.ca, files.cert, files.key))
        if now == self._seen:
            return
        self._seen = now
        try:
            # A context that can't be used would be left behind by a key that does not match.
            _context(files)
        except OSError as error:
            log.error("the renewed certificates %s are not taken: %s", files, error)
            return
        _load(self.context, files)


def stamp(paths: Iterable[str | None]) -> Stamp:
    """What changes when one of the files does."""
    return tuple(None if path is None else _stamp(path) for path in paths)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca)
    _load(context, TlsFiles(None, files.cert, files.key))
    return context


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    if files.ca is not None:
        context.load_verify_locations(files.ca)
    if files.cert is not None:
        context.load_cert_chain(files.cert, files.key)
