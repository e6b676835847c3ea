"""TLS for clients: the gateway's certificate, and whose clients' certificates it asks for. Renewed files are noticed."""

import logging
import ssl
from pathlib import Path

from gateway.specs import ServerTlsSpec
from replicas.client_tls import stamp

log = logging.getLogger("graceway.tls")


class ServerTls:
    """What each handshake is done with: the files as they are then, or as they last fitted together.

    Raises:
        OSError: a file is not there, or not what it should be.
    """

    def __init__(self, spec: ServerTlsSpec) -> None:
        self._spec = spec
        self._seen = self._stamp()
        self._current = _context(spec)
        self.context = _context(spec)
        """For a listener. OpenSSL asks for the context to go on with as soon as a client has said hello."""
        self.context.sni_callback = self._choose

    @property
    def asks_for_certificates(self) -> bool:
        return self._spec.client_ca_file is not None

    def has_changed(self) -> bool:
        """Takes up renewed files; whether it did."""
        now = self._stamp()
        if now == self._seen:
            return False
        self._seen = now
        try:
            self._current = _context(self._spec)
        except OSError as error:
            # In the middle of a renewal a key may be that of another certificate.
            log.error("the renewed certificate %s is not taken: %s", self._spec.cert_file, error)
            return False
        log.info("the certificate %s is taken up anew", self._spec.cert_file)
        return True

    def files(self) -> tuple[bytes, bytes, bytes | None]:
        """Key, certificates, and the clients' authorities, as PEM."""
        spec = self._spec
        authorities = None if spec.client_ca_file is None else Path(spec.client_ca_file).read_bytes()
        return Path(spec.key_file).read_bytes(), Path(spec.cert_file).read_bytes(), authorities

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        self.has_changed()
        connection.context = self._current

    def _stamp(self) -> object:
        spec = self._spec
        return stamp((spec.cert_file, spec.key_file, spec.client_ca_file))


def _context(spec: ServerTlsSpec) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(spec.cert_file, spec.key_file)
    context.set_alpn_protocols(["http/1.1"])
    if spec.client_ca_file is not None:
        context.load_verify_locations(spec.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
        # A session that is taken up again shows no certificate, so none may outlive the authority that signed it.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context
