"""What an operator asks of the ladder, read from JSON: `POST /admin/pin`."""

from dataclasses import dataclass
from typing import Any

import orjson

FOR_S = 900.0
MAX_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Pin:
    """Serve by `tier` and below, or give it `share` of its traffic; no tier: as the signals say again."""

    model: str | None
    tier: str | None
    share: float | None
    for_s: float


def read_pin(raw: bytes) -> Pin:
    """The request's body.

    Raises:
        ValueError: what is wrong with it.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict) or not {"model", "tier", "share", "for_s"}.issuperset(body):
        raise ValueError("the body must be an object with model, tier, share, for_s")
    pin = Pin(_text(body, "model"), _text(body, "tier"), _number(body, "share", None, 1.0), _seconds(body))
    if pin.share is not None and pin.tier is None:
        raise ValueError("a share needs a tier")
    return pin


def _text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} must be a string")
    return value


def _seconds(body: dict[str, Any]) -> float:
    for_s = _number(body, "for_s", FOR_S, MAX_S)
    if not for_s:
        raise ValueError("for_s must be more than 0")
    return for_s


def _number(body: dict[str, Any], name: str, default: float | None, most: float) -> float | None:
    value = body.get(name, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ValueError(f"{name} must be a number from 0 to {most:g}")
    return float(value)
