"""Answers under way: one request's sequences, written to its client as they come or when they are whole."""

import os
import signal
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import orjson

from loadtests import stamps
from loadtests.asked import Asked
from loadtests.decoding import Decoder, Sequence
from loadtests.faults import HEALTHY, NEVER, Fault
from loadtests.shapes import DONE, Envelope, Json, Piece, event
from loadtests.telemetry import Telemetry
from loadtests.tokens import VOCABULARY
from loadtests.wire import Connection

_IDS = tuple(b"[%d]" % token_id for token_id in range(len(VOCABULARY)))
_PLACE = "\x00"


def failure_body(status: int, message: str) -> Json:
    kinds = {429: "RateLimitError", 503: "ServiceUnavailableError"}
    kind = kinds.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


@lru_cache(maxsize=65536)
def _escaped(text: str) -> bytes:
    return orjson.dumps(text)[1:-1]


class Ended(Protocol):
    """Who is told that a generation has ended."""

    def discard(self, generation: "Generation", /) -> None: ...


class Generation:
    """One request's sequences. Subclasses write."""

    is_stream = False

    def __init__(
        self,
        envelope: Envelope,
        connection: Connection,
        decoder: Decoder,
        telemetry: Telemetry,
        active: Ended,
    ) -> None:
        self.envelope = envelope
        self.fault = HEALTHY
        self._connection = connection
        self._decoder = decoder
        self._telemetry = telemetry
        self._active = active
        self._sequences: dict[Sequence, None] = {}
        self._generated = 0

    def start(self, fault: Fault) -> None:
        self.fault = fault
        asked = self.envelope.asked
        for number, prompt in enumerate(asked.prompts):
            for choice in range(asked.choices):
                index = number * asked.choices + choice
                sequence = Sequence(prompt, index, asked.limits, choice, self, fault)
                self._sequences[sequence] = None
        for sequence in list(self._sequences):
            self._decoder.submit(sequence)

    def abandon(self) -> None:
        """The client hung up: every slot is free at once."""
        self._telemetry.aborted += 1
        self._drop_all("abort")

    def emit(self, sequence: Sequence, token_id: int, text: str, finish: str | None) -> None:
        raise NotImplementedError

    def strike(self, sequence: Sequence) -> bool:
        """Lets the fault happen to a sequence that has come to it; true if the step gives no token."""
        fault = self.fault
        match fault.kind:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                self._decoder.silence(sequence)
            case "cut":
                self._drop_all("error")
                self._connection.close(reset=fault.reset)
            case "malformed":
                sequence.fault_at = NEVER
                self._break_next()
                return False
            case "no_tokens":
                self.emit_nothing(sequence)
            case _:
                self._drop_all("error")
                self._fail()
        return True

    def emit_nothing(self, sequence: Sequence) -> None:
        raise NotImplementedError

    def _break_next(self) -> None:
        raise NotImplementedError

    def _fail(self) -> None:
        raise NotImplementedError

    def _end(self, sequence: Sequence, reason: str) -> bool:
        """Ends one sequence; true if it was the last."""
        self._generated += sequence.count
        self._telemetry.ended(sequence, reason)
        self._sequences.pop(sequence, None)
        self._decoder.drop(sequence)
        if self._sequences:
            return False
        self._telemetry.served += 1
        self._active.discard(self)
        return True

    def _drop_all(self, reason: str) -> None:
        for sequence in list(self._sequences):
            self._telemetry.ended(sequence, reason)
            self._decoder.drop(sequence)
        self._sequences.clear()
        self._active.discard(self)


class Streamed(Generation):
    """Server-sent events of `tokens_per_event` tokens (vLLM merges them when its front end lags)."""

    is_stream = True

    def __init__(
        self,
        envelope: Envelope,
        connection: Connection,
        decoder: Decoder,
        telemetry: Telemetry,
        active: Ended,
        tokens_per_event: int = 1,
    ) -> None:
        super().__init__(envelope, connection, decoder, telemetry, active)
        self._tokens_per_event = tokens_per_event
        self._has_stamps = stamps.ASKED in envelope.asked.unknown
        self._has_role = not envelope.asked.is_chat
        self._is_broken = False
        self._pieces: dict[Sequence, Piece] = {}
        self._templates: dict[int, tuple[bytes, bytes, bytes]] = {}

    def start(self, fault: Fault) -> None:
        # vLLM's server sends the head of the response before the engine has seen the request.
        self._connection.begin_stream()
        super().start(fault)

    def emit(self, sequence: Sequence, token_id: int, text: str, finish: str | None) -> None:
        if not self._has_role:
            self._say_role()
        template = self._templates.get(sequence.index)
        if template is not None and finish is None and not self._is_broken:
            head, middle, tail = template
            ids = _IDS[token_id] if self.envelope.asked.wants_ids else b"null"
            self._connection.chunk(b"".join((head, _escaped(text), middle, ids, self._stamped(tail))))
        else:
            self._emit_slowly(sequence, token_id, text, finish)

    def _emit_slowly(self, sequence: Sequence, token_id: int, text: str, finish: str | None) -> None:
        piece = self._pieces.setdefault(sequence, Piece(sequence.index, [], []))
        piece.texts.append(text)
        piece.ids.append(token_id)
        if finish is None and len(piece.ids) < self._tokens_per_event:
            return
        del self._pieces[sequence]
        piece.generated, piece.finish, piece.stop_reason = sequence.count, finish, sequence.stop_reason
        stamp = {stamps.SENT_AT: time.monotonic()} if self._has_stamps else {}
        self._write(event(self.envelope.token_chunk(piece) | stamp))
        self._learn_template(sequence)
        if finish is not None and self._end(sequence, finish):
            self._close_stream()

    def _learn_template(self, sequence: Sequence) -> None:
        """After a sequence's first event, all plain ones differ in text and id alone."""
        asked = self.envelope.asked
        if asked.wants_logprobs or asked.wants_running_usage or self._tokens_per_event > 1:
            return
        piece = Piece(sequence.index, [_PLACE], [], generated=2)
        sample = event(self.envelope.token_chunk(piece))
        head, _, rest = sample.partition(orjson.dumps(_PLACE)[1:-1])
        middle, _, tail = rest.rpartition(b"[]" if asked.wants_ids else b"null")
        self._templates[sequence.index] = (head, middle, tail)

    def _stamped(self, tail: bytes) -> bytes:
        """The end of an event, with the moment at which it is written where the client wants to know."""
        if not self._has_stamps:
            return tail
        return b'%b,"%b":%.6f}\n\n' % (tail[:-3], stamps.SENT_AT.encode(), time.monotonic())

    def _say_role(self) -> None:
        self._has_role = True
        for index in range(self.envelope.asked.choices):
            self._connection.chunk(event(self.envelope.role_chunk(index)))

    def _write(self, data: bytes) -> None:
        if self._is_broken:
            self._is_broken = False
            data = data[: len(data) * 2 // 3] + b"\n\n"
        self._connection.chunk(data)

    def _close_stream(self) -> None:
        if self.envelope.asked.wants_usage:
            self._connection.chunk(event(self.envelope.usage_chunk(self._generated)))
        self._connection.chunk(DONE)
        self._connection.end_stream()

    def emit_nothing(self, sequence: Sequence) -> None:
        if not self._has_role:
            self._say_role()
        piece = Piece(sequence.index, [""], [], sequence.count, "stop")
        self._connection.chunk(event(self.envelope.token_chunk(piece)))
        if self._end(sequence, "stop"):
            self._close_stream()

    def _break_next(self) -> None:
        self._is_broken = True

    def _fail(self) -> None:
        if not self._has_role:
            self._say_role()
        if self.fault.reset:
            self._connection.close(reset=True)
            return
        self._connection.chunk(event(failure_body(500, "Internal server error")))
        self._connection.chunk(DONE)
        self._connection.end_stream()


class Whole(Generation):
    """One JSON body when every sequence is done. `describe` adds what the engine saw of the request."""

    def __init__(
        self,
        envelope: Envelope,
        connection: Connection,
        decoder: Decoder,
        telemetry: Telemetry,
        active: Ended,
        describe: Callable[[Asked], Json],
    ) -> None:
        super().__init__(envelope, connection, decoder, telemetry, active)
        self._describe = describe
        self._pieces: dict[int, Piece] = {}
        self._is_broken = False

    def emit(self, sequence: Sequence, token_id: int, text: str, finish: str | None) -> None:
        piece = self._pieces.get(sequence.index)
        if piece is None:
            piece = self._pieces[sequence.index] = Piece(sequence.index, [], [])
        piece.texts.append(text)
        piece.ids.append(token_id)
        if finish is not None:
            self._complete(sequence, piece, finish)

    def _complete(self, sequence: Sequence, piece: Piece, finish: str) -> None:
        piece.generated, piece.finish, piece.stop_reason = sequence.count, finish, sequence.stop_reason
        if not self._end(sequence, finish):
            return
        pieces = [self._pieces[index] for index in sorted(self._pieces)]
        body = orjson.dumps(self.envelope.whole(pieces) | {"sim": self._describe(self.envelope.asked)})
        self._connection.reply(200, body[: len(body) // 2] if self._is_broken else body)

    def emit_nothing(self, sequence: Sequence) -> None:
        piece = self._pieces.setdefault(sequence.index, Piece(sequence.index, [""], []))
        self._complete(sequence, piece, "stop")

    def _break_next(self) -> None:
        self._is_broken = True

    def _fail(self) -> None:
        if self.fault.reset:
            self._connection.close(reset=True)
        else:
            self._connection.reply(500, orjson.dumps(failure_body(500, "Internal server error")))
