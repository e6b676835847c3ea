"""Following an engine's events over real sockets: from the first on, across gaps, and when it is started anew."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
import zmq

from loadtests.kv_publisher import KvPublisher
from replicas.kv_events import BlockRemoved, Event, KvEvents, Missed, replay_of
from tests.rig import eventually

WITHIN_S = 5.0
OVER = (-1).to_bytes(8, "big", signed=True)


@pytest.fixture
def endpoint() -> Iterator[str]:
    # A socket's path may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="gw-kv-") as folder:
        yield f"ipc://{folder}/events"


class Scripted:
    """An engine that says just what a test has it say: numbers that come by themselves, and answers when it is asked."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._live: zmq.Socket[bytes] = self._context.socket(zmq.XPUB)
        self._live.bind(endpoint)
        self._asked: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._asked.bind(replay_of(endpoint))

    def __enter__(self) -> "Scripted":
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    async def is_heard(self) -> bool:
        """Whether somebody has subscribed."""
        return bool(self._live.poll(0)) and self._live.recv() == b"\1"

    def says(self, *numbers: int) -> None:
        for number in numbers:
            self._live.send_multipart((b"", number.to_bytes(8, "big"), batch(number)))

    async def answers(self, *numbers: int) -> int:
        """Waits for a question and gives these: from which number on was asked."""
        await eventually(self._is_asked, WITHIN_S)
        who, empty, first = self._asked.recv_multipart()
        for number in numbers:
            self._asked.send_multipart((who, empty, b"", number.to_bytes(8, "big"), batch(number)))
        self._asked.send_multipart((who, empty, b"", OVER, b""))
        return int.from_bytes(first, "big")

    async def _is_asked(self) -> bool:
        return bool(self._asked.poll(0))


def batch(number: int) -> bytes:
    """An event that says its number."""
    event = {"type": "BlockRemoved", "block_hashes": [number], "medium": None}
    return msgspec.msgpack.encode([time.time(), [event], 0])


class Follower:
    """What is heard of an engine, and how it ended."""

    def __init__(self, endpoint: str) -> None:
        self.events = KvEvents(endpoint)
        self.heard: list[Event] = []
        self._task = asyncio.create_task(self._follow())

    async def __aenter__(self) -> "Follower":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.events.close()

    @property
    def numbers(self) -> list[object]:
        return [event.block_hashes[0] for event in self.heard if isinstance(event, BlockRemoved)]

    async def until(self, *numbers: int) -> None:
        async def is_there() -> bool:
            return self.numbers == list(numbers)

        await eventually(is_there, WITHIN_S)

    async def ended(self) -> None:
        await asyncio.wait_for(self._task, WITHIN_S)

    async def _follow(self) -> None:
        async with aclosing(self.events.batches()) as batches:
            async for one in batches:
                self.heard += one


async def test_what_was_published_before_anybody_listened_is_asked_for(endpoint: str) -> None:
    publisher = KvPublisher(endpoint)
    for number in range(3):
        publisher.stored([number], number - 1 if number else None, list(range(16)), 16)
    async with Follower(endpoint) as follower:

        async def has(count: int) -> bool:
            return len(follower.heard) == count

        await eventually(lambda: has(3), WITHIN_S)
        publisher.removed([2])
        await eventually(lambda: has(4), WITHIN_S)


async def test_a_gap_is_filled_and_nothing_counts_twice(endpoint: str) -> None:
    with Scripted(endpoint) as engine:
        async with Follower(endpoint) as follower:
            await eventually(engine.is_heard, WITHIN_S)
            assert await engine.answers(0, 1) == 0
            engine.says(1, 2, 5)
            await follower.until(0, 1, 2)
            assert await engine.answers(3, 4, 5) == 3
            await follower.until(0, 1, 2, 3, 4, 5)


async def test_the_last_one_that_was_lost_is_found_without_another_one(endpoint: str) -> None:
    with Scripted(endpoint) as engine:
        async with Follower(endpoint) as follower:
            await eventually(engine.is_heard, WITHIN_S)
            await engine.answers()
            assert await engine.answers(0) == 0
            await follower.until(0)
            assert await engine.answers(1) == 1
            await follower.until(0, 1)


async def test_what_is_gone_for_good_is_said(endpoint: str) -> None:
    with Scripted(endpoint) as engine:
        async with Follower(endpoint) as follower:
            await eventually(engine.is_heard, WITHIN_S)
            await engine.answers(0)
            engine.says(1, 4)
            await follower.until(0, 1)
            await engine.answers()
            with pytest.raises(Missed):
                await follower.ended()


async def test_an_engine_that_never_answers_is_followed_all_the_same(endpoint: str) -> None:
    with Scripted(endpoint) as engine:
        async with Follower(endpoint) as follower:
            await eventually(engine.is_heard, WITHIN_S)
            engine.says(7, 8)
            await follower.until(7, 8)


async def test_a_new_engine_counts_anew(endpoint: str) -> None:
    async with Follower(endpoint) as follower:
        with Scripted(endpoint) as engine:
            await eventually(engine.is_heard, WITHIN_S)
            await engine.answers(0, 1)
            await follower.until(0, 1)
        for part in ("", "-replay"):
            Path(f"{endpoint}{part}".removeprefix("ipc://")).unlink(missing_ok=True)
        follower.events.begin()
        with Scripted(endpoint) as another:
            assert await another.answers(0, 1, 2) == 0
            await follower.until(0, 1, 0, 1, 2)
