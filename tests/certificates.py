"""Certificates for the tests of TLS: an authority, and PEM files that it signed."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in files."""

    cert: str
    key: str


class Authority:
    """One that signs, with its own certificate in a file."""

    def __init__(self, folder: Path, name: str) -> None:
        self._authority = trustme.CA(organization_name=name)
        self._folder, self._name = folder, name
        self.file = str(folder / f"{name}.pem")
        self._authority.cert_pem.write_to_path(self.file)

    def sign(self, name: str, *, has_expired: bool = False) -> Pair:
        """A certificate for localhost and 127.0.0.1. Signed again under its name, it is renewed."""
        past = datetime.now(UTC) - timedelta(days=1)
        until = {"not_after": past, "not_before": past - timedelta(days=2)} if has_expired else {}
        made = self._authority.issue_cert("localhost", "127.0.0.1", common_name=name, **until)
        pair = Pair(*(str(self._folder / f"{self._name}-{name}.{kind}") for kind in ("cert", "key")))
        made.private_key_pem.write_to_path(pair.key)
        Path(pair.cert).write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        return pair

    def client(self, own: Pair | None = None) -> ssl.SSLContext:
        """A client's side: trusts this authority, and shows a certificate if it has one."""
        context = ssl.create_default_context(cafile=self.file)
        if own is not None:
            context.load_cert_chain(own.cert, own.key)
        return context

    def server(self, own: Pair, asks: bool = False) -> ssl.SSLContext:
        """A server's side; `asks` for a certificate of this authority's."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.file)
        context.load_cert_chain(own.cert, own.key)
        context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
        return context
