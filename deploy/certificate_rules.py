"""What is wrong with a certificate, before anybody connects: not there, no certificate, past its time, another one's key."""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from deploy.yaml_lines import Place, Plain

Fault = tuple[Place, str, str]
_PEM = "Name a file in PEM form"


def certificate_faults(
    place: Place, written: dict[str, Plain], now: datetime | None = None
) -> Iterator[Fault]:
    """Of `cert_file` and `key_file` at a place: each needs the other, and they must fit."""
    cert, key = written.get("cert_file"), written.get("key_file")
    if cert is None and key is None:
        return
    if not isinstance(cert, str) or not isinstance(key, str):
        missing = "key_file" if isinstance(cert, str) else "cert_file"
        yield (*place, missing), f"'{missing}' is missing", "A certificate and its key go together"
        return
    if fault := certificate_fault(cert, now or datetime.now(UTC)):
        yield (*place, "cert_file"), *fault
    elif fault := _key_fault(cert, key):
        yield (*place, "key_file"), *fault


def authority_faults(place: Place, path: Plain) -> Iterator[Fault]:
    """Of a file with the certificates of authorities."""
    if not isinstance(path, str):
        return
    if not Path(path).is_file():
        yield place, f"'{path}' is not there", _PEM
        return
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        yield place, f"'{path}' holds no certificates: {error}", _PEM


def certificate_fault(path: str, now: datetime) -> tuple[str, str] | None:
    """What is wrong with a certificate and how to mend it; None when nothing is."""
    try:
        found = x509.load_pem_x509_certificates(Path(path).read_bytes())[0]
    except OSError:
        return f"'{path}' is not there, or can't be read", _PEM
    except ValueError:
        return f"'{path}' holds no certificate", _PEM
    if now > found.not_valid_after_utc:
        return f"the certificate '{path}' has expired, on {found.not_valid_after_utc:%Y-%m-%d}", "Renew it"
    if now < found.not_valid_before_utc:
        return (
            f"the certificate '{path}' counts from {found.not_valid_before_utc:%Y-%m-%d} on",
            "Wait, or set the clock",
        )
    return None


def _key_fault(cert: str, key: str) -> tuple[str, str] | None:
    if not Path(key).is_file():
        return f"'{key}' is not there", _PEM
    try:
        # A key under a password would be asked for at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"'{key}' is not the key of '{cert}'", "Name the key that the certificate was made for"
        return (
            f"'{key}' holds no key that can be read: {error.reason or error}",
            "Name a key in PEM form, without a password",
        )
    except OSError as error:
        return f"'{key}' can't be read: {error}", _PEM
    return None
