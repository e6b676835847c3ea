"""Who may administer a gateway, and who may look at it."""

from base64 import b64decode
from hmac import compare_digest
from ipaddress import ip_address

from gateway.callers import Callers
from gateway.request import bearer


def may_administer(authorization: str | None, client_host: str, admin_key: str | None) -> bool:
    """With an admin key: whoever bears it. Without one: clients on loopback."""
    if admin_key is None:
        return is_loopback(client_host)
    return compare_digest(bearer(authorization or "").encode(), admin_key.encode())


def may_look(authorization: str | None, client_host: str, admin_key: str | None, callers: Callers) -> bool:
    """Who may see what the gateway shows of itself: anybody while there are no keys; else who bears one, or is on loopback.

    A browser can't bear a token, so a key is taken as the password of HTTP's Basic scheme, too; only for looking, as a
    browser sends that along whoever made it ask.
    """
    if not callers.are_needed or is_loopback(client_host):
        return True
    key = bearer(authorization or "") or _password(authorization or "")
    if callers.key_of(key) is not None:
        return True
    return admin_key is not None and compare_digest(key.encode(), admin_key.encode())


def _password(authorization: str) -> str:
    """The password of a Basic header; empty when it is of another kind, or broken."""
    scheme, _, told = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return b64decode(told.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
