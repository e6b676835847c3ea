"""Sequences and the clock that decodes them: slots first, then an unbounded queue, as vLLM has it.

All running sequences step together. Steps keep an absolute schedule, so a late timer is not a slower engine;
a whole missed step (the process was frozen) is not caught up.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Protocol
from zlib import crc32

from loadtests.faults import HEALTHY, NEVER, Fault
from loadtests.prefixes import PrefixCache
from loadtests.telemetry import Telemetry
from loadtests.tokens import (
    END_OF_TEXT,
    END_OF_TURN,
    LEADS,
    PACKED_IDS,
    VOCABULARY,
    decode,
    encode,
    next_token,
    salted,
    state_after,
)

TEXTS = tuple(
    "" if number in LEADS else piece.decode("utf-8", "replace") for number, piece in enumerate(VOCABULARY)
)
_ANOTHER_LANGUAGE = 0x5A5A5A5A


@dataclass(frozen=True, slots=True)
class Limits:
    """When a sequence ends."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    include_stop: bool = False


class Sink(Protocol):
    """Where a sequence's tokens go."""

    is_stream: bool

    def emit(self, sequence: "Sequence", token_id: int, text: str, finish: str | None) -> None: ...

    def strike(self, sequence: "Sequence") -> bool:
        """Lets the sequence's fault happen; true if there is no token in this step."""


class Sequence:
    """One answer under way."""

    __slots__ = (
        "_held", "_limits", "_unprimed", "arrived_at", "count", "fault", "fault_at", "first_token_at",
        "index", "last", "last_token_at", "prompt", "ready_at", "sink", "started_at", "state", "stop_reason",
    )  # fmt: skip

    def __init__(
        self, prompt: list[int], index: int, limits: Limits, choice: int, sink: Sink, fault: Fault
    ) -> None:
        self.prompt = prompt
        self.index = index
        self.sink = sink
        self.state = salted(state_after(prompt), choice)
        self.last = prompt[-1] if prompt else END_OF_TURN
        self.count = 0
        self.stop_reason: str | None = None
        self.arrived_at = self.started_at = self.ready_at = 0.0
        self.first_token_at = self.last_token_at = 0.0
        self._limits = limits
        self._held = ""
        # vLLM's detokenizer, primed with a prompt that ends inside a character, gives the whole prompt's
        # text back with the character's end.
        self._unprimed = self.last in LEADS
        self.fault = HEALTHY
        self.fault_at = NEVER
        self.have(fault)

    def have(self, fault: Fault) -> None:
        """From the next token on, this sequence has this fault and no other."""
        if self.ready_at == inf:
            self.ready_at = 0.0
        if fault.kind == "wrong" and self.fault.kind != "wrong":
            self.state ^= _ANOTHER_LANGUAGE
        self.fault = fault
        self.fault_at = NEVER if fault.is_at_the_start and self.count else fault.trigger_tokens

    def step(self) -> None:
        """One token."""
        limits = self._limits
        may_end = not limits.ignore_eos and self.count >= limits.min_tokens
        token_id = next_token(self.state, self.last, may_end)
        if self.fault.kind == "garbage":
            token_id = encode(self.fault.text)[0] if self.fault.text else END_OF_TURN
        self.state = crc32(PACKED_IDS[token_id], self.state)
        self.count += 1
        finish = "stop" if token_id == END_OF_TEXT else "length" if self.count >= limits.max_tokens else None
        text = TEXTS[token_id] if token_id < 128 or token_id > 255 else self._second_half(token_id)
        self.last = token_id
        if limits.stop:
            text, finish = self._until_stop(text, finish)
        self.sink.emit(self, token_id, text, finish)

    def _second_half(self, token_id: int) -> str:
        text = (VOCABULARY[self.last] + VOCABULARY[token_id]).decode("utf-8", "replace")
        if self._unprimed:
            self._unprimed = False
            text = decode(self.prompt) + text
        return text

    def _until_stop(self, text: str, finish: str | None) -> tuple[str, str | None]:
        """Holds back what may be the start of a stop string, as vLLM does, and ends before a whole one."""
        held = self._held + text
        found = self._first_stop(held)
        if found is not None:
            start, self.stop_reason = found
            end = start + len(self.stop_reason) if self._limits.include_stop else start
            return held[:end], "stop"
        keep = 0 if finish or self._limits.include_stop else max(map(len, self._limits.stop)) - 1
        cut = max(len(held) - keep, 0)
        self._held = held[cut:]
        return held[:cut], finish

    def _first_stop(self, text: str) -> tuple[int, str] | None:
        if self.count <= self._limits.min_tokens:
            return None
        hits = [(text.find(stop), stop) for stop in self._limits.stop if stop in text]
        return min(hits) if hits else None


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast an engine is; 0 means that a token, or a prefill, takes no time."""

    slots: int = 8
    token_s: float = 0.02
    prefill_tokens_per_s: float = 20_000.0

    def prefill_s(self, tokens: int) -> float:
        return tokens / self.prefill_tokens_per_s if self.prefill_tokens_per_s else 0.0


class Decoder:
    """Runs up to `slots` sequences and keeps the rest in order of arrival."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pace: Pace, telemetry: Telemetry, prefixes: PrefixCache
    ) -> None:
        self._loop = loop
        self._pace = pace
        self._telemetry = telemetry
        self._prefixes = prefixes
        self._running: dict[Sequence, None] = {}
        self._waiting: deque[Sequence] = deque()
        self._timer: asyncio.Handle | None = None
        self._next_step_at = 0.0
        self._prefill_free_at = 0.0
        self.slowdown = 1.0
        self.peak_running = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def afflict(self, fault_of: Callable[[Sequence], Fault]) -> None:
        """Gives every sequence a fault, or heals it, and wakes those that were silent."""
        for sequence in (*self._running, *self._waiting):
            sequence.have(fault_of(sequence))
        if self._running and self._timer is None:
            self._arm(self._loop.time())

    def silence(self, sequence: Sequence) -> None:
        """The sequence keeps its slot and says nothing more."""
        sequence.ready_at = inf

    @property
    def held_tokens(self) -> int:
        return sum(len(sequence.prompt) + sequence.count for sequence in self._running)

    def submit(self, sequence: Sequence) -> None:
        sequence.arrived_at = self._loop.time()
        self._waiting.append(sequence)
        self._admit()

    def drop(self, sequence: Sequence) -> None:
        """Takes a sequence out, finished or not, and gives its slot to the next."""
        if sequence in self._running:
            del self._running[sequence]
            self._admit()
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._pace.slots:
            sequence = self._waiting.popleft()
            self._running[sequence] = None
            self._prefill(sequence)
        self.peak_running = max(self.peak_running, len(self._running))

    def _prefill(self, sequence: Sequence) -> None:
        """Prompts share the engine's prefill speed one after the other."""
        now = self._loop.time()
        cached = self._prefixes.admit(sequence.prompt)
        self._telemetry.admitted(len(sequence.prompt), cached, now - sequence.arrived_at)
        takes_s = self._pace.prefill_s(len(sequence.prompt) - cached) * self.slowdown
        sequence.started_at = now
        sequence.ready_at = self._prefill_free_at = max(now, self._prefill_free_at) + takes_s
        if self._timer is None or sequence.ready_at < self._next_step_at - self._pace.token_s * self.slowdown:
            self._arm(sequence.ready_at)

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_step_at = when
        if when == inf:
            self._timer = None
        elif when <= self._loop.time():
            self._timer = self._loop.call_soon(self._step)
        else:
            self._timer = self._loop.call_at(when, self._step)

    def _step(self) -> None:
        self._timer = None
        scheduled = self._next_step_at
        now = max(self._loop.time(), scheduled)
        ready = [sequence for sequence in self._running if sequence.ready_at <= now]
        for sequence in ready:
            if sequence in self._running:
                self._decode(sequence, now)
        if self._running:
            self._arm(self._next(scheduled, now))

    def _decode(self, sequence: Sequence, now: float) -> None:
        """One token, or a fault in its place; without a pace, all tokens of an answer that nobody streams."""
        while True:
            if sequence.count >= sequence.fault_at and sequence.sink.strike(sequence):
                return
            self._telemetry.token(sequence, now)
            sequence.step()
            if self._pace.token_s or sequence.sink.is_stream or sequence not in self._running:
                return

    def _next(self, scheduled: float, now: float) -> float:
        earliest = min(sequence.ready_at for sequence in self._running)
        if earliest > now:
            return earliest
        following = scheduled + self._pace.token_s * self.slowdown
        return following if following > now else now
