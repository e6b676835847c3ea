"""The journal of one answer: what has been said, in tokens and text, and the frames that the client gets for it.

Every attempt's events pass through it. It holds start-up frames back until there is real content, removes the token ids
that only the gateway asked for, and after a break writes the continuing events as if nothing had happened: the same
id, `created` and shape, usage counted once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.failure import ExchangeFailed
from gateway.leg import Leg
from gateway.replica_answer import event_of, message_of, usage_of, usage_of_embeddings
from gateway.request import Request
from gateway.sse import DONE, data_of, frame, joined
from gateway.template import EventTemplate, learn

Json = dict[str, Any]


@dataclass(slots=True)
class Journal:
    """What the answer is so far."""

    request: Request
    id: str = ""
    created: int = 0
    model: str = ""
    prompt_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    safe_ids: int = 0
    """Ids whose text has been said; those after it are part of a character that is not yet whole."""
    may_split_a_character: bool = False
    """Whether the last of them may be half of a character all the same: the engine merged several ids in one event."""
    unlisted: int = 0
    """Tokens that `ids` does not hold, as a replica told no ids or another tier's. After the first of them it holds no more:
    a gap would be worse than an end."""
    has_started: bool = False
    """Whether the client has content."""
    finish_reason: str = ""
    is_done: bool = False
    usage: Json | None = None
    odd: str = ""
    """What the answer holds that a continuation could not repeat, such as tool calls; empty for plain text."""
    message: Json = field(default_factory=dict)
    choice: Json = field(default_factory=dict)
    extra: Json = field(default_factory=dict)
    leg: Leg = field(default_factory=lambda: Leg("", {}))
    _ended: set[int] = field(default_factory=set)
    """Choices that have their finish reason."""
    _held: list[bytes] = field(default_factory=list)
    _template: EventTemplate | None = None
    _told_ids: int = 0
    """Ids that come once more, and that the client has."""

    @property
    def tokens(self) -> int:
        """Tokens generated so far and kept."""
        return len(self.ids) + self.unlisted

    @property
    def has_all_ids(self) -> bool:
        """Whether prompt and answer are known as token ids from the first to the last."""
        return bool(self.prompt_ids and self.ids) and not self.unlisted

    @property
    def has_ended(self) -> bool:
        """Whether nothing that still comes belongs to the answer."""
        return self.is_done or (self.leg.stop is not None and self.leg.stop.hit is not None)

    @property
    def said(self) -> str:
        return "".join(self.text)

    def rewind(self) -> None:
        """Forgets ids whose text the client does not have: half of a character is generated again, not half of it told.

        An engine that goes on behind half of a character tells the text of the whole prompt: its detokenizer finds no
        place to begin. Where stop strings hold text back, or the last text came with several ids at once, it takes the
        replica to tell where a character ends.
        """
        if not self.request.stops:
            self.forget_untold_ids()

    def forget_untold_ids(self) -> None:
        """Forgets ids whose text the client does not have, for a continuation that generates that text again."""
        self.keep_ids(self.safe_ids)

    def recount(self, tokens: int | None) -> None:
        """Takes the word of a tokenizer for how many tokens were said by a replica that told no ids, where it knows: an event
        is one at least, and may be several."""
        if not self.ids and tokens is not None:
            self.unlisted = max(self.unlisted, tokens)

    @property
    def is_end_known(self) -> bool:
        """Whether the ids that are kept stand for just the text that the client has."""
        return not self.request.stops and not self.may_split_a_character

    def keep_ids(self, count: int) -> None:
        """Forgets all but so many ids. Those that the client was told come again, and are not told twice."""
        if self.request.wants_token_ids:
            self._told_ids += len(self.ids) - count
        del self.ids[count:]

    def begin(self, leg: Leg) -> None:
        """A new attempt goes on with this answer, from what the client has."""
        leg.base_tokens = self.tokens
        self.is_done = False
        if not self.has_started:
            # The client was not told of that end.
            self.finish_reason = ""
            self._ended.clear()
        self._held.clear()
        self._template = None
        self.leg = leg

    def take_plain(self, events: Sequence[bytes], start: int, out: list[bytes]) -> int:
        """Enters the events from `start` on that fit the template, as `take` does with the data of one; their number."""
        template = self._template
        plain = None if template is None else template.read(events, start)
        if template is None or plain is None or not plain.ids:
            return 0
        told = plain.texts
        self.text.append(b"".join(told).decode())
        self.ids.extend(plain.ids)
        self.safe_ids = len(self.ids)
        self.may_split_a_character = False
        count = len(told)
        out.append(template.tell(told) if self.leg.asked_ids else joined(events[start : start + count]))
        return count

    def take(self, payload: bytes, out: list[bytes]) -> None:
        """Enters one event's data, and appends what the client gets for it to `out`.

        Raises:
            ExchangeFailed: `malformed` or `error_event`.
        """
        if payload == DONE:
            self.is_done = True
            return
        try:
            self._take_event(payload, out)
        except orjson.JSONEncodeError as error:
            # Reading takes deeper nesting than writing.
            raise ExchangeFailed("malformed", f"an event that can't be passed on: {error}") from error

    def _take_event(self, payload: bytes, out: list[bytes]) -> None:
        event = event_of(payload)
        choices: list[Json] = event["choices"]
        if (self.finish_reason or len(choices) > 1) and len(going := self._not_ended(choices)) < len(choices):
            choices = event["choices"] = going
            payload = orjson.dumps(event)
        if not choices:
            self._enter_usage(event, out)
            return
        if not self.leg.is_continuation:
            self._identify(event)
        spoke = False
        for choice in choices:
            spoke |= self._enter_choice(choice)
        told = self._rewrite(payload, event)
        if told is None:
            return
        if spoke or self.has_started or (self.finish_reason and self.ids):
            self._start(out)
            out.append(told)
            self._learn(payload, told, choices)
        else:
            self._held.append(told)

    def _not_ended(self, choices: list[Json]) -> list[Json]:
        """Those that still belong to the answer. A choice has one finish reason, in its last chunk: whoever was told it has
        all of the choice, and a break afterwards needs no replica. So what a replica says of it later counts for nothing."""
        going, ended = [], set(self._ended)
        for choice in choices:
            index = _index_of(choice)
            if index not in ended:
                going.append(choice)
            if choice.get("finish_reason"):
                ended.add(index)
        return going

    def _learn(self, payload: bytes, told: bytes, choices: list[Json]) -> None:
        """Takes the event for a template, where the next ones can only differ in text and token id."""
        self._template = None
        leg, choice = self.leg, choices[0]
        text = (
            (choice.get("delta") or {}).get("content") if self.request.kind == "chat" else choice.get("text")
        )
        is_plain = len(choices) == 1 and choice.get("index") == 0 and not choice.get("finish_reason")
        is_first = not leg.is_continuation and not self.unlisted and not self.odd
        if text and is_plain and is_first:
            self._template = learn(payload, told[len(b"data: ") : -2], text)

    def _start(self, out: list[bytes]) -> None:
        if not self.has_started:
            self.has_started = True
            out.extend(self._held)
            self._held.clear()

    def _identify(self, event: Json) -> None:
        if not self.id:
            self.id, self.created = str(event.get("id", "")), int(event.get("created") or 0)
            self.prompt_ids = event.get("prompt_token_ids") or []
        self.model = str(event.get("model", ""))
        if not self.request.stream:
            self._keep_extra(event)

    def _keep_extra(self, event: Json) -> None:
        """For an answer that is told in one piece: the event's fields beside the answer, as the client would have them."""
        known = _KNOWN_OR_OF_IDS if self.leg.asked_ids else _KNOWN_EVENT_FIELDS
        if not known.issuperset(event):
            self.extra.update((k, v) for k, v in event.items() if k not in known)

    def _enter_choice(self, choice: Json) -> bool:
        """Notes a choice's ids, text and end; whether it holds content."""
        if not self.prompt_ids and not self.leg.is_continuation:
            self.prompt_ids = choice.get("prompt_token_ids") or []
        delta = choice.get("delta")
        text = choice.get("text") if delta is None else delta.get("content")
        ids = choice.get("token_ids")
        if ids and not self.unlisted and not self.leg.is_splice:
            self.ids.extend(ids)
        elif ids or text:
            self.unlisted += len(ids) if ids else 1
        if text:
            if self.leg.stop is not None:
                text = self._stop_at(choice, delta, text)
            self.text.append(text)
            self.safe_ids = len(self.ids)
            self.may_split_a_character = ids is not None and len(ids) > 1
        if choice.get("finish_reason"):
            self._finish(choice, delta)
        if not self.request.stream:
            self._keep(choice, delta)
        return bool(text) or (delta is not None and self._is_odd(delta))

    def _stop_at(self, choice: Json, delta: Json | None, text: str) -> str:
        assert self.leg.stop is not None
        text = self.leg.stop.feed(text)
        _set_text(choice, delta, text)
        if self.leg.stop.hit is not None:
            choice["finish_reason"], choice["stop_reason"] = "stop", self.leg.stop.hit
        return text

    def _finish(self, choice: Json, delta: Json | None) -> None:
        self.finish_reason = choice["finish_reason"]
        self._ended.add(_index_of(choice))
        stop = self.leg.stop
        if stop is not None and stop.hit is None and (rest := stop.flush()):
            text = (choice.get("text") if delta is None else delta.get("content")) or ""
            _set_text(choice, delta, text + rest)
            self.text.append(rest)

    def _is_odd(self, delta: Json) -> bool:
        odd = next((k for k, v in delta.items() if v and k not in ("role", "content")), "")
        self.odd = self.odd or odd
        return bool(odd)

    def _keep(self, choice: Json, delta: Json | None) -> None:
        """For an answer that is told in one piece: the fields beside the text."""
        for key, value in (delta or {}).items():
            if key not in ("role", "content") and value is not None:
                old = self.message.get(key)
                self.message[key] = old + value if isinstance(old, str) and isinstance(value, str) else value
        self.choice.update((k, v) for k, v in choice.items() if k not in _KNOWN_CHOICE_FIELDS)

    def _enter_usage(self, event: Json, out: list[bytes]) -> None:
        usage = event.get("usage")
        if not isinstance(usage, dict):
            return
        self.usage = self._merged(usage)
        self._keep_extra(event)
        if self.request.stream and not self.leg.asked_usage:
            told = frame(orjson.dumps(self._as_first({**event, "usage": self.usage})))
            (out if self.has_started else self._held).append(told)

    def _merged(self, usage: Json) -> Json:
        """Usage over all legs: the prompt once, and each token of the answer once."""
        if not self.leg.is_continuation:
            return usage
        completion = self.leg.base_tokens + int(usage.get("completion_tokens") or 0)
        prompt = len(self.prompt_ids) or max(0, int(usage.get("prompt_tokens") or 0) - self.leg.base_tokens)
        return {
            **usage,
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def _rewrite(self, payload: bytes, event: Json) -> bytes | None:
        """The frame that the client gets; None for an event that says nothing new."""
        leg = self.leg
        if not leg.is_continuation:
            # Of an answer that is told in one piece, nobody reads it.
            return frame(_without_ids(event) if leg.asked_ids and self.request.stream else payload)
        choices = [self._shaped(choice) for choice in event["choices"]]
        if not any(_says_something(choice) for choice in choices):
            return None
        event = self._as_first({**event, "choices": choices})
        if isinstance(event.get("usage"), dict):
            event["usage"] = self._merged(event["usage"])
        if leg.is_splice:
            event["graceway"] = {"spliced": True, "after_tokens": leg.base_tokens}
            if leg.given_up:
                event["graceway"]["given_up"] = leg.given_up
        return frame(_without_ids(event) if leg.asked_ids else orjson.dumps(event))

    def _as_first(self, event: Json) -> Json:
        """The event under the id, time and object of the answer's first one."""
        name = "chat.completion.chunk" if self.request.kind == "chat" else "text_completion"
        return {
            **event,
            "id": self.id or event.get("id"),
            "created": self.created or event.get("created"),
            "object": name,
        }

    def _shaped(self, choice: Json) -> Json:
        """A choice of a text completion as one of a chat, when a chat goes on as token ids."""
        choice = {k: v for k, v in choice.items() if k != "prompt_token_ids"}
        if self._told_ids and choice.get("token_ids"):
            again = min(self._told_ids, len(choice["token_ids"]))
            choice["token_ids"] = choice["token_ids"][again:]
            self._told_ids -= again
        if self.request.kind == "chat" and choice.get("delta") is None:
            text = choice.pop("text", "")
            choice["delta"] = {"content": text} if text else {}
        elif self.request.kind == "chat":
            choice["delta"] = {k: v for k, v in choice["delta"].items() if k != "role"}
        return choice

    @property
    def is_empty(self) -> bool:
        """Whether the replica ended without generating anything: no token is never success."""
        generated = int((self.usage or {}).get("completion_tokens") or 0)
        return not self.has_started and not self.ids and generated == 0

    def release_held(self, out: list[bytes]) -> None:
        """Lets the frames of an answer go that is empty in earnest: its first token was its last."""
        self._start(out)

    def close(self, out: list[bytes]) -> None:
        """What is still owed to the client of an answer that has all its tokens, but whose replica could not say so."""
        if not self.finish_reason:
            self.finish_reason = "length"
            choice: Json = {"index": 0, "logprobs": None, "finish_reason": "length"}
            _set_text(choice, choice.setdefault("delta", {}) if self.request.kind == "chat" else None, "")
            out.append(frame(orjson.dumps(self._as_first({"model": self.model, "choices": [choice]}))))
        if self.request.wants_usage and self.usage is None:
            self.usage = self.counted_usage()
            event = self._as_first({"model": self.model, "choices": [], "usage": self.usage})
            out.append(frame(orjson.dumps(event)))

    def take_whole(self, body: bytes) -> None:
        """Enters an answer that is only passed on: its usage, and of one whose first token is its last also what it says.

        Raises:
            ExchangeFailed: `malformed`, `error_event` or `no_tokens`.
        """
        if self.request.kind == "embedding":
            self.usage = usage_of_embeddings(body)
            return
        answer = event_of(body)
        self.usage, choice = usage_of(answer), answer["choices"][0]
        if self.request.max_tokens == 1 and not self.request.inexact_because:
            said = message_of(choice)
            self._is_odd(said)
            self.text.append(said.get("content") or "")
            self.finish_reason = choice.get("finish_reason") or ""
            self.model, self.unlisted, self.has_started = str(answer.get("model", "")), 1, True

    @property
    def used_tokens(self) -> int:
        """Tokens of prompt and answer, as the replica counted them or as the journal did."""
        return int((self.usage or self.counted_usage()).get("total_tokens") or 0)

    def counted_usage(self) -> Json:
        """Usage from the journal's own counts."""
        prompt, completion = len(self.prompt_ids), self.tokens
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def whole(self) -> bytes:
        """The answer in one piece, as a replica gives it to a request without `stream`."""
        choice: Json = {"index": 0, "logprobs": None, **self.choice}
        if self.request.kind == "chat":
            choice["message"] = {"role": "assistant", "content": self.said, **self.message}
        else:
            choice["text"] = self.said
        answer = {
            **self.extra,
            "id": self.id,
            "created": self.created,
            "model": self.model,
            "choices": [choice],
        }
        answer["object"] = "chat.completion" if self.request.kind == "chat" else "text_completion"
        if self.request.wants_token_ids:
            choice["token_ids"] = self.ids
            (answer if self.request.kind == "chat" else choice)["prompt_token_ids"] = self.prompt_ids
        choice["finish_reason"] = self.finish_reason or "length"
        answer["usage"] = self.usage or self.counted_usage()
        return orjson.dumps(answer)


def enter(journal: Journal, events: list[bytes], out: list[bytes]) -> ExchangeFailed | None:
    """Enters events up to one that breaks the stream; what came before it in the same read is the client's all the same."""
    at = 0
    # What the replica says after the end, or after a stop string that only the gateway can see, is not the answer.
    while at < len(events) and not journal.has_ended:
        plain = journal.take_plain(events, at, out)
        try:
            if not plain and (payload := data_of(events[at])):
                journal.take(payload, out)
        except ExchangeFailed as failed:
            return failed
        at += plain or 1
    return None


_KNOWN_EVENT_FIELDS = frozenset({"id", "object", "created", "model", "choices", "usage", "prompt_token_ids"})
_KNOWN_OR_OF_IDS = _KNOWN_EVENT_FIELDS | {"prompt_text"}
"""And what comes with token ids, for whoever asked for them."""
_KNOWN_CHOICE_FIELDS = frozenset({"index", "delta", "text", "finish_reason", "token_ids", "prompt_token_ids"})


def _index_of(choice: Json) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else 0


def _set_text(choice: Json, delta: Json | None, text: str) -> None:
    if delta is None:
        choice["text"] = text
    else:
        delta["content"] = text


def _says_something(choice: Json) -> bool:
    return bool(
        choice.get("text")
        or any((choice.get("delta") or {}).values())
        or choice.get("finish_reason")
        or choice.get("token_ids")
    )


def _without_ids(event: Json) -> bytes:
    event.pop("prompt_token_ids", None)
    event.pop("prompt_text", None)
    for choice in event["choices"]:
        choice.pop("token_ids", None)
        choice.pop("prompt_token_ids", None)
    return orjson.dumps(event)
