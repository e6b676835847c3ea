"""An open-loop client that streams chat completions and verifies every token of every answer.

Times are seconds of the event loop's clock. A request's time to first token counts from the moment it was
due, so that a load generator that falls behind makes the measured system look worse, not better; how far it
fell behind is recorded beside.
"""

import asyncio
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic

import orjson

from loadtests.client_wire import ClientConnection, CutError, connect, post
from loadtests.stamps import ASKED, SENT_AT
from loadtests.tokens import END_OF_TEXT, LEADS, Message, encode, expected_answer

PATIENCE_S = 60.0
"""How long a client waits for the whole of an answer."""
KEPT_HEADERS = (
    "x-served-tier",
    "x-served-replica",
    "x-degraded",
    "x-shed-reason",
    "x-request-id",
    "x-session-durability",
    "retry-after",
)


@dataclass(frozen=True, slots=True)
class Question:
    """One request and its known answer."""

    messages: tuple[Message, ...]
    max_tokens: int
    headers: dict[str, str] = field(default_factory=dict)
    leaves_after_tokens: int | None = None
    wants_stamps: bool = False
    """Whether the simulated engine is to say when it wrote each token."""

    def body(self, model: str) -> bytes:
        request = {"model": model, "messages": self.messages, "max_tokens": self.max_tokens}
        more = {ASKED: True} if self.wants_stamps else {}
        return orjson.dumps(request | {"stream": True, "ignore_eos": True} | more)

    def expected_ids(self) -> tuple[int, ...]:
        return expected_answer(self.messages, self.max_tokens, ignore_eos=True).ids


@dataclass(frozen=True, slots=True)
class Difference:
    """How received tokens differ from the expected ones, as far as they came."""

    lost: int = 0
    repeated: int = 0
    divergent: int = 0


def difference(expected: tuple[int, ...], received: tuple[int, ...]) -> Difference:
    """Follows `received` along `expected`: a gap is lost, a step back repeated, anything else divergent."""
    lost = repeated = position = 0
    for number, token_id in enumerate(received):
        if position < len(expected) and expected[position] == token_id:
            position += 1
            continue
        jump = _jump(expected, received[number : number + 2], position)
        if jump is None:
            return Difference(lost, repeated, len(received) - number)
        lost += max(jump, 0)
        repeated += max(-jump, 0)
        position += jump + 1
    return Difference(lost, repeated)


def _jump(expected: tuple[int, ...], ahead: tuple[int, ...], position: int) -> int | None:
    """How far from `position` the stream goes on, the nearest place first; None if nowhere."""
    for distance in range(1, len(expected)):
        for jump in (-distance, distance):
            start = position + jump
            if start >= 0 and expected[start : start + len(ahead)] == ahead:
                return jump
    return None


@dataclass(slots=True)
class Record:
    """What one request met."""

    due_at: float
    question: Question
    started_at: float = 0.0
    ended_at: float = 0.0
    token_times: list[float] = field(default_factory=list)
    text: str = ""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)
    finish_reason: str | None = None
    is_done: bool = False
    error_event: str | None = None
    malformed_events: int = 0
    sent_at: list[float] = field(default_factory=list)
    """When the engine wrote what came at each of `token_times`, where it said so."""
    read_lags_s: list[float] = field(default_factory=list)
    """How late some of the reads were, where the kernel said when they could have been."""
    failure: str | None = None
    """Why it ended early: `cut`, `refused`, `timeout`, or `left` where the client hung up itself."""

    @property
    def lag_s(self) -> float:
        """How late the load generator itself was."""
        return self.started_at - self.due_at

    @property
    def ttft_s(self) -> float | None:
        return self.token_times[0] - self.due_at if self.token_times else None

    @property
    def max_gap_s(self) -> float:
        """The longest silence between two tokens."""
        pairs = zip(self.token_times, self.token_times[1:], strict=False)
        return max((later - earlier for earlier, later in pairs), default=0.0)

    @property
    def received_ids(self) -> tuple[int, ...]:
        return tuple(encode(self.text))

    def difference(self) -> Difference:
        return difference(_with_text(self.question.expected_ids()), self.received_ids)

    @property
    def is_ended(self) -> bool:
        """Ended as a whole answer ends, whatever its text is."""
        return self.is_done and self.finish_reason == "length" and self.error_event is None

    @property
    def is_whole(self) -> bool:
        """Came to its end as an undisturbed answer does, each token right."""
        return self.is_ended and self.received_ids == _with_text(self.question.expected_ids())

    @property
    def is_declared_failure(self) -> bool:
        """Did not come whole and said so: a refusal, or an error event and no [DONE]."""
        if self.status != 200:
            return self.status in (429, 503) and "x-shed-reason" in self.headers
        return self.error_event is not None and not self.is_done

    def is_in_time(self, ttft_slo_s: float) -> bool:
        return self.is_whole and self.ttft_s is not None and self.ttft_s <= ttft_slo_s


def complaint(record: Record, begun_at: float) -> dict[str, object]:
    """What one has to know of a request that did not come whole and in time."""
    return {
        "due_s": round(record.due_at - begun_at, 3),
        "lag_s": round(record.lag_s, 3),
        "ttft_s": record.ttft_s and round(record.ttft_s, 3),
        "took_s": round(record.ended_at - record.started_at, 3),
        "max_gap_s": round(record.max_gap_s, 3),
        "status": record.status,
        "failure": record.failure,
        "tokens": len(record.received_ids),
        "finish_reason": record.finish_reason,
        "is_done": record.is_done,
        "error_event": record.error_event,
        "headers": record.headers,
    }


def _with_text(ids: tuple[int, ...]) -> tuple[int, ...]:
    """What can be seen of ids in text: no end, and no character that is only begun."""
    shown = tuple(token_id for token_id in ids if token_id != END_OF_TEXT)
    return shown[:-1] if shown and shown[-1] in LEADS else shown


class EventReader:
    """Splits a body into server-sent events, however it was cut, and fills a record with them."""

    def __init__(self, record: Record, leave: Callable[[], None]) -> None:
        self._record = record
        self._leave = leave
        self._rest = b""

    def receive(self, data: bytes, now: float) -> None:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            if event.startswith(b"data: "):
                self._take(event[6:], now)

    def _take(self, data: bytes, now: float) -> None:
        record = self._record
        if data == b"[DONE]":
            record.is_done = True
            return
        try:
            payload = orjson.loads(data)
        except orjson.JSONDecodeError:
            record.malformed_events += 1
            return
        if "error" in payload:
            record.error_event = str(payload["error"])
            return
        record.models.add(payload["model"])
        timed = len(record.token_times)
        for choice in payload["choices"]:
            # LiteLLM leaves out what is null.
            self._take_choice(choice["delta"].get("content"), choice.get("finish_reason"), now)
        if SENT_AT in payload and len(record.token_times) > timed:
            record.sent_at.append(payload[SENT_AT])

    def _take_choice(self, content: str | None, finish_reason: str | None, now: float) -> None:
        record = self._record
        record.finish_reason = finish_reason or record.finish_reason
        if not content:
            return
        record.text += content
        record.token_times.append(now)
        if len(record.token_times) == record.question.leaves_after_tokens:
            self._leave()


async def ask(
    url: str, model: str, question: Question, due_at: float, timeout_s: float = PATIENCE_S
) -> Record:
    """One request on a connection of its own. Never raises for what the server does."""
    # The event loop's own clock is as old as its present turn, and tells whole milliseconds: a refusal takes less.
    record = Record(due_at, question, started_at=monotonic())
    connection: ClientConnection | None = None
    try:
        async with asyncio.timeout(timeout_s):
            connection = await connect(url)
            await _exchange(
                connection, record, post(url, "/v1/chat/completions", question.body(model), question.headers)
            )
    except TimeoutError:
        record.failure = "timeout"
    except CutError:
        # One read may bring more tokens than the client wanted before it left.
        left = len(record.token_times) >= (question.leaves_after_tokens or math.inf)
        record.failure = "left" if left else "cut"
    except OSError:
        record.failure = "refused"
    finally:
        record.ended_at = monotonic()
        if connection is not None:
            _keep_head(connection, record)
            connection.close()
    return record


async def _exchange(connection: ClientConnection, record: Record, request: bytes) -> None:
    reader = EventReader(record, connection.close)
    await connection.exchange(request, reader.receive)


def _keep_head(connection: ClientConnection, record: Record) -> None:
    record.status = connection.status
    record.headers = {name: connection.headers[name] for name in KEPT_HEADERS if name in connection.headers}


def poisson(rate_per_s: float, duration_s: float, rng: random.Random) -> list[float]:
    """Arrival times of a Poisson process, from 0 to `duration_s`."""
    times: list[float] = []
    now = rng.expovariate(rate_per_s)
    while now < duration_s:
        times.append(now)
        now += rng.expovariate(rate_per_s)
    return times


async def open_loop(
    urls: Iterable[str],
    model: str,
    questions: Iterable[Question],
    offsets_s: Iterable[float],
    begun_at: float,
    patience_s: float = PATIENCE_S,
) -> list[Record]:
    """Asks each question at its own time, whatever became of those before, over the URLs in turn."""
    loop = asyncio.get_running_loop()
    targets = list(urls)
    tasks: list[asyncio.Task[Record]] = []
    for number, (question, offset_s) in enumerate(zip(questions, offsets_s, strict=False)):
        due_at = begun_at + offset_s
        await asyncio.sleep(max(0.0, due_at - loop.time()))
        url = targets[number % len(targets)]
        tasks.append(loop.create_task(ask(url, model, question, due_at, patience_s)))
    return list(await asyncio.gather(*tasks))
