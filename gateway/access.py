"""Who may administer a gateway."""

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
    """Who may see what the gateway shows of itself: anybody while there are no keys; else who bears one, or is on loopback."""
    if not callers.are_needed or is_loopback(client_host):
        return True
    if callers.key_of(bearer(authorization or "")) is not None:
        return True
    return admin_key is not None and may_administer(authorization, client_host, admin_key)


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
