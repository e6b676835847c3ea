"""Who may administer a gateway."""

from hmac import compare_digest
from ipaddress import ip_address


def may_administer(authorization: str | None, client_host: str, admin_key: str | None) -> bool:
    """With an admin key: whoever bears it. Without one: clients on loopback."""
    if admin_key is None:
        return _is_loopback(client_host)
    scheme, _, key = (authorization or "").partition(" ")
    return scheme.lower() == "bearer" and compare_digest(key.strip().encode(), admin_key.encode())


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
