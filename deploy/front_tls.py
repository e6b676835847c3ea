"""TLS for the clients of `graceway up`: HAProxy shows the certificate, from files in the system's private folder, and is
told over its administration socket when it has been renewed.
"""

import asyncio
import logging
from pathlib import Path

from gateway.server_tls import ServerTls
from gateway.specs import ServerTlsSpec

log = logging.getLogger("graceway.tls")

_ANSWER_WITHIN_S = 5.0
_TAKEN = ("ransaction", "Success")
"""In HAProxy's answers to `set ssl …` and to `commit ssl …`."""


class FrontTls:
    """The certificate of one HAProxy's front end. Its files are `home`'s.

    Raises:
        OSError: a file is not there, or not what it should be.
    """

    def __init__(self, spec: ServerTlsSpec, home: Path) -> None:
        self._tls = ServerTls(spec)
        self._certificate, self._authorities = home / "front.pem", home / "clients.pem"
        self._is_owed = False
        self._write()

    @property
    def binding(self) -> str:
        """What `bind` says of it. As with `graceway serve`, no session outlives the authority of its certificate."""
        words = f"ssl crt {self._certificate} alpn http/1.1 ssl-min-ver TLSv1.2"
        if self._tls.asks_for_certificates:
            words += f" ca-file {self._authorities} verify required no-tls-tickets"
        return words

    async def follow(self, control: Path) -> None:
        """Has HAProxy take up renewed files, by its socket `control`; tried again the next time where it could not."""
        if self._tls.has_changed():
            self._write()
            self._is_owed = True
        if self._is_owed:
            try:
                self._is_owed = not await self._tell(control)
            except (OSError, TimeoutError) as error:
                log.warning("HAProxy can't be told of the renewed certificate yet: %s", error)

    async def _tell(self, control: Path) -> bool:
        """Whether it has taken what it was told."""
        for command in self._commands():
            said = await asyncio.wait_for(_told(control, command), _ANSWER_WITHIN_S)
            if not any(word in said for word in _TAKEN):
                log.error("HAProxy does not take the renewed certificate: %s", said.strip())
                return False
        return True

    def _write(self) -> None:
        key, certificates, authorities = self._tls.files()
        _replace(self._certificate, certificates.rstrip() + b"\n" + key)
        if authorities is not None:
            _replace(self._authorities, authorities)

    def _commands(self) -> list[str]:
        """In which an empty line ends what is given (https://docs.haproxy.org/2.8/management.html#9.3)."""
        kinds = {"cert": self._certificate}
        if self._tls.asks_for_certificates:
            kinds["ca-file"] = self._authorities
        commands = []
        for kind, path in kinds.items():
            lines = [line for line in path.read_text().splitlines() if line.strip()]
            commands += [f"set ssl {kind} {path} <<\n" + "\n".join(lines) + "\n", f"commit ssl {kind} {path}"]
        return commands


def _replace(path: Path, content: bytes) -> None:
    """Whole or not at all, and for nobody else to read."""
    fresh = path.with_suffix(".new")
    fresh.touch(0o600)
    fresh.write_bytes(content)
    fresh.replace(path)


async def _told(socket: Path, command: str) -> str:
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(command.encode() + b"\n")
        return (await reader.read()).decode()
    finally:
        writer.close()
