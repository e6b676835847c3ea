"""The three checks of an engine server: live (it answers), ready (its model is there), right (a known answer).

They need nothing but a URL, so they serve replicas that Graceway started and those that it did not. Each
replica is probed through a session of its own, and each check has its own limit: one that hangs delays no
other.
"""

import asyncio
import os
import re
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import aiohttp
import orjson

from replicas.client_tls import ClientTls

ProbeKind = Literal["ok", "failed", "wrong"]

_FULL = frozenset({429, 503})


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What one check found, and when. `wrong` is an answer that came, and can't be believed."""

    kind: ProbeKind
    reason: str
    latency_s: float
    as_of: float
    """Unix time at which the check ended."""
    answer: str = ""
    is_backpressure: bool = False
    """It failed only because the replica is full (429 or 503): no sign of illness."""
    max_model_len: int | None = None
    """Tokens that a prompt and its answer may have together, where the server says so."""

    @property
    def is_ok(self) -> bool:
        return self.kind == "ok"


@dataclass(frozen=True, slots=True)
class KnownPrompt:
    """A prompt whose greedy answer is known. Without `expect`, any answer that makes sense is right.

    Counting is what models are surest of: between two right engines the least certain token decides.
    """

    prompt: str = "1, 2, 3, 4, 5, 6, 7,"
    expect: str | None = None
    max_tokens: int = 8


def open_probe_session(tls: ClientTls | None = None) -> aiohttp.ClientSession:
    """A session for one replica's checks. Each check opens a connection anew: whether it can is part of the
    check. `tls` is for https://; without it the system's authorities count.
    """
    connector = aiohttp.TCPConnector(limit=8, force_close=True, ssl=True if tls is None else tls.context)
    return aiohttp.ClientSession(connector=connector)


async def probe_live(
    session: aiohttp.ClientSession,
    url: str,
    *,
    api_key: str | None = None,
    timeout_s: float = 2.0,
    wall: Callable[[], float] = time.time,
) -> ProbeResult:
    """Whether a server answers at all, be it ready or not."""

    async def ask() -> str:
        await _get(session, url + "/health", api_key)
        return ""

    return await _check(ask, timeout_s, wall)


async def probe_ready(
    session: aiohttp.ClientSession,
    url: str,
    *,
    served_model: str,
    api_key: str | None = None,
    timeout_s: float = 2.0,
    wall: Callable[[], float] = time.time,
) -> ProbeResult:
    """Whether /health is 200 (or unknown there) and /v1/models lists `served_model`."""

    async def ask() -> str:
        health = await _get(session, url + "/health", api_key)
        if health.status != 404:
            # A host elsewhere may have OpenAI's paths alone; then its list of models has to do.
            _expect_200(health, "/health")
        models = await _get(session, url + "/v1/models", api_key)
        _expect_200(models, "/v1/models")
        if served_model not in (windows := _model_windows(models.body)):
            raise _Failed(f"serves {', '.join(sorted(windows)) or 'no model'}, not {served_model}")
        return str(windows[served_model] or "")

    found = await _check(ask, timeout_s, wall)
    return replace(found, answer="", max_model_len=int(found.answer) if found.answer else None)


async def probe_right(
    session: aiohttp.ClientSession,
    url: str,
    *,
    served_model: str,
    known: KnownPrompt,
    api_key: str | None = None,
    timeout_s: float = 10.0,
    wall: Callable[[], float] = time.time,
) -> ProbeResult:
    """Whether the known prompt, run through the engine, brings the known answer; it stands in `answer`."""

    async def ask() -> str:
        body = {
            "model": served_model,
            "prompt": known.prompt,
            "max_tokens": known.max_tokens,
            "temperature": 0,
        }
        answered = await _post(session, url + "/v1/completions", api_key, body)
        _expect_200(answered, "/v1/completions")
        return _completion_text(answered.body)

    result = await _check(ask, timeout_s, wall)
    if result.kind != "ok" or not (fault := fault_in(result.answer, known)):
        return result
    return ProbeResult("wrong", fault, result.latency_s, result.as_of, result.answer)


def fault_in(answer: str, known: KnownPrompt) -> str:
    """What is wrong with an answer to the known prompt; empty when nothing is."""
    if nonsense := nonsense_in(answer):
        return nonsense
    if known.expect is not None and not _same_words(answer, known.expect):
        return f"answered {_quote(answer)} instead of {_quote(known.expect)}"
    return ""


def nonsense_in(answer: str) -> str:
    """Why no model in its senses answers this; empty when one might. Broken arithmetic shows as one token for
    ever.
    """
    solid = re.sub(r"\s+", "", answer)
    if not solid:
        return "answered nothing"
    if "\N{REPLACEMENT CHARACTER}" in answer.rstrip("\N{REPLACEMENT CHARACTER}"):
        return f"answered no valid text: {_quote(answer)}"
    if len(solid) > 3 and len(set(solid)) == 1:
        return f"answered one character over and over: {_quote(answer)}"
    if re.fullmatch(r"(?:nan|inf|null|none|-)+", solid, re.IGNORECASE) and len(solid) > 3:
        return f"answered no numbers: {_quote(answer)}"
    return ""


def _same_words(answer: str, expect: str) -> bool:
    # One of the two may have been cut shorter; how much is asked for is the prober's choice.
    answer, expect = answer.strip(), expect.strip()
    return bool(answer) and (answer.startswith(expect) or expect.startswith(answer))


class _Failed(Exception):  # noqa: N818 - carries a reason to `_check`, and goes no further
    def __init__(self, reason: str, *, is_backpressure: bool = False) -> None:
        super().__init__(reason)
        self.is_backpressure = is_backpressure


@dataclass(frozen=True, slots=True)
class _Answered:
    status: int
    body: bytes


async def _check(
    ask: Callable[[], Awaitable[str]], timeout_s: float, wall: Callable[[], float]
) -> ProbeResult:
    begun = time.monotonic()

    def result(kind: ProbeKind, reason: str, answer: str = "", is_full: bool = False) -> ProbeResult:
        return ProbeResult(kind, reason, time.monotonic() - begun, wall(), answer, is_full)

    try:
        return result("ok", "", await _within(timeout_s, ask))
    except TimeoutError:
        return result("failed", f"no answer within {timeout_s:g} s")
    except _Failed as failure:
        return result("failed", str(failure), is_full=failure.is_backpressure)
    except (aiohttp.ClientError, OSError) as error:
        return result("failed", _in_words(error))


def _in_words(error: aiohttp.ClientError | OSError) -> str:
    """Why a server could not be asked, without its address, so that replicas with the same trouble say the same."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    match cause:
        case ConnectionRefusedError():
            return "refused"
        case ConnectionResetError() | BrokenPipeError() | aiohttp.ServerDisconnectedError():
            return "connection closed"
        case socket.gaierror():
            return "name not found"
        case OSError(errno=int(number)):
            return os.strerror(number).lower()
        case aiohttp.ClientResponseError() | aiohttp.ClientPayloadError():
            return "no HTTP answer"
    return type(cause).__name__


async def _within(timeout_s: float, ask: Callable[[], Awaitable[str]]) -> str:
    async with asyncio.timeout(timeout_s):
        return await ask()


async def _get(session: aiohttp.ClientSession, url: str, api_key: str | None) -> _Answered:
    headers = _credentials(api_key)
    async with session.get(url, headers=headers, timeout=_NO_TIMEOUT, allow_redirects=False) as response:
        return _Answered(response.status, await response.read())


async def _post(
    session: aiohttp.ClientSession, url: str, api_key: str | None, body: Mapping[str, object]
) -> _Answered:
    headers = {"content-type": "application/json", **_credentials(api_key)}
    data = orjson.dumps(body)
    # Where a replica points to is no address of the config: it is never followed.
    async with session.post(
        url, data=data, headers=headers, timeout=_NO_TIMEOUT, allow_redirects=False
    ) as response:
        return _Answered(response.status, await response.read())


# `_check` bounds the whole of it.
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None)


def _credentials(api_key: str | None) -> dict[str, str]:
    return {} if api_key is None else {"authorization": f"Bearer {api_key}"}


def _expect_200(answered: _Answered, path: str) -> None:
    if answered.status != 200:
        is_full = answered.status in _FULL and path != "/health"
        raise _Failed(f"{path} answered {answered.status}", is_backpressure=is_full)


def _model_windows(body: bytes) -> dict[str, int | None]:
    """The models by name, with the window of each that tells it, as vLLM does."""
    try:
        cards = {str(card["id"]): card.get("max_model_len") for card in orjson.loads(body)["data"]}
        return {name: length if isinstance(length, int) else None for name, length in cards.items()}
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise _Failed("/v1/models answered no list of models") from None


def _completion_text(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["choices"][0]["text"])
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError):
        raise _Failed("/v1/completions answered no completion") from None


def _quote(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")
