"""Prints what the hot path makes of fixed inputs: events in every grouping, requests, and decisions by the hundred."""

from dataclasses import replace
from random import Random

import orjson

from gateway import journal
from gateway.errors import ClientError
from gateway.journal import Journal, enter
from gateway.legs import Target, first_leg
from gateway.policy.decide import decide
from gateway.policy.facts import Attempt
from gateway.request import Request, parse_request
from gateway.sse import DONE_FRAME, EventSplitter, frame
from tests.gateway.policy.fleets import ROUTE, R, facts, ladder, own, tier
from tests.gateway.recorded import chat_stream, text_stream
from tests.gateway.requests import chat, text

TEXTS = (" one", ' "two"', " drei\n", " 四", "", "\\", " é", "🚑")


def answer_in_reads(request: Request, wire: bytes, size: int) -> str:
    """What the client gets when the answer comes in reads of that size, and what the journal then holds."""
    made, splitter, out = Journal(request), EventSplitter(), []
    made.begin(first_leg(request, Target("best", "m")))
    for at in range(0, len(wire), size):
        broken = enter(made, splitter.events(wire[at : at + size]), out)
        out += [repr(broken).encode()] if broken is not None else []
    return repr((b"".join(out), made.ids, made.said, made.finish_reason, made.whole()))


def many_events() -> bytes:
    events = chat_stream()[:2]
    for number in range(60):
        choice = {
            "index": 0,
            "delta": {"content": TEXTS[number % 8]},
            "logprobs": None,
            "finish_reason": None,
        }
        events.append(events[1] | {"choices": [choice | {"token_ids": [number]}]})
    return b"".join(frame(orjson.dumps(event)) for event in events)


def said_of(raw: bytes, headers: dict[str, str]) -> str:
    try:
        request = parse_request("chat", raw, {"x-request-id": "r", **headers})
        return repr(replace(request, received_at=0.0))
    except ClientError as error:
        return error.to_json().decode()


def decisions() -> list[str]:
    rng = Random(7)
    said = []
    for number in range(300):
        replicas = [R(name, rng.randrange(10)) for name in "abcdef"[: 1 + number % 6]]
        fleet = ladder(tier("best", *replicas), tier("small", R("s", rng.randrange(9))), own("canned"))
        tried = [Attempt("best", "a", "reset")] if number % 3 == 0 else []
        said.append(repr(decide(facts(), fleet, tried, 100.0, rng, ROUTE)))
    return said


def main() -> None:
    print(journal.__file__)
    recorded = b"".join(frame(orjson.dumps(event)) for event in chat_stream()) + DONE_FRAME
    of_text = b"".join(frame(orjson.dumps(event)) for event in text_stream()) + DONE_FRAME
    for is_streamed in (True, False):
        for size in (7, 333, 1 << 20):
            print(answer_in_reads(chat(is_streamed), recorded, size))
            print(answer_in_reads(chat(is_streamed), many_events(), size))
            print(answer_in_reads(chat(is_streamed, return_token_ids=True), many_events(), size))
            print(answer_in_reads(text(is_streamed), of_text, size))
            print(answer_in_reads(chat(is_streamed), recorded[:200] + b"data: {]\n\n", size))
    for raw in (
        b"",
        b"[]",
        b'{"model": 1}',
        b'{"model": "m", "messages": []}',
        b'{"model": "m", "messages": [{}]}',
    ):
        for headers in (
            {},
            {"x-priority": "critical"},
            {"x-priority": "no"},
            {"x-request-timeout-seconds": "-1"},
        ):
            print(said_of(raw, headers))
    print("\n".join(decisions()))


if __name__ == "__main__":
    main()
