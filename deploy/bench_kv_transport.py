"""How fast KV blocks move between a Redis and this process: our sockets, redis-py, and what a socket itself can do.

Rounds are interleaved, so that a machine that others use slows all of them alike; claims are about ratios and best rounds.
"""

import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from redis import Redis

from state_store.kv.block_format import HEAD_BYTES, BlockId, pack
from state_store.kv.block_store import BlockStore, Outgoing
from state_store.kv.budget import Budget

THREADS = 2
VOLUME_BYTES = 96_000_000
"""That each measurement moves."""
WANTED_BYTES_PER_S, WANTED_RATIO = 1.5e9, 3.0
FINGERPRINT = b"bench-bench-benc"
_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    """One way to move blocks: bytes/s of each round, and CPU seconds per gigabyte of this process and of Redis."""

    name: str
    rates: tuple[float, ...]
    cpu_s_per_gb: float
    redis_cpu_s_per_gb: float

    @property
    def text(self) -> str:
        best, middle = max(self.rates) / 1e9, statistics.median(self.rates) / 1e9
        return (
            f"{self.name:<31} {best:5.2f} best  {middle:5.2f} median GB/s  {self.cpu_s_per_gb:5.2f} CPU s/GB here  "
            f"{self.redis_cpu_s_per_gb:5.2f} in Redis"
        )


def measure(url: str, size_bytes: int, rounds: int) -> list[Row]:
    """All ways, `rounds` times each in turn, with blocks of `size_bytes` at the Redis at `url`."""
    trial = Trial(url, size_bytes)
    loads: dict[str, Callable[[], None]] = {
        "loopback socket": trial.loop_back,
        "our sockets, load": lambda: trial.load(1),
        "our sockets, load, two threads": lambda: trial.load(THREADS),
        "redis-py, load, one MGET": trial.load_by_redis_py_at_once,
        "redis-py, load, a GET each": lambda: trial.load_by_redis_py(1),
        "redis-py, load, two threads": lambda: trial.load_by_redis_py(THREADS),
    }
    saves: dict[str, Callable[[], None]] = {
        "our sockets, save": lambda: trial.save(1),
        "our sockets, save, two threads": lambda: trial.save(THREADS),
        "redis-py, save, a SET each": lambda: trial.save_by_redis_py(1),
        "redis-py, save, two threads": lambda: trial.save_by_redis_py(THREADS),
    }
    ways = {**loads, **saves}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, float] = dict.fromkeys(ways, 0.0)
    redis_cpu: dict[str, float] = dict.fromkeys(ways, 0.0)
    trial.save(1)
    for number in range(rounds):
        # The first to load finds Redis without memory at hand for its answers, so each is the first in turn.
        for name in (*rotated(loads, number), *rotated(saves, number)):
            if name in saves:
                # What it takes Redis to let go of the last blocks is no part of taking new ones.
                trial.forget()
            way, redis_begun = ways[name], trial.redis_cpu_s()
            begun, cpu_begun = time.perf_counter(), time.process_time()
            way()
            rates[name].append(trial.volume / (time.perf_counter() - begun))
            cpu[name] += time.process_time() - cpu_begun
            redis_cpu[name] += trial.redis_cpu_s() - redis_begun
    trial.close()
    each = 1e9 / rounds / trial.volume
    return [Row(name, tuple(rates[name]), cpu[name] * each, redis_cpu[name] * each) for name in ways]


def rotated(names: Iterable[str], by: int) -> list[str]:
    in_order = list(names)
    return [in_order[(at + by) % len(in_order)] for at in range(len(in_order))]


class Trial:
    """Blocks of one size, and each way to move all of them."""

    def __init__(self, url: str, size_bytes: int) -> None:
        count = max(THREADS, VOLUME_BYTES // size_bytes // THREADS * THREADS)
        self.volume = count * size_bytes
        self._size_bytes = size_bytes
        self._blocks = [BlockId(FINGERPRINT, number.to_bytes(32, "big")) for number in range(count)]
        payload = memoryview(os.urandom(size_bytes))
        self._outgoing = [Outgoing(block, pack(block, payload)[0], payload) for block in self._blocks]
        self._value = self._outgoing[0].head + bytes(payload)
        self._store = BlockStore(url, Budget(1 << 40, 3600.0))
        self._redis = [Redis.from_url(url) for _ in range(THREADS)]

    def close(self) -> None:
        self.forget()
        self._store.close()
        for redis in self._redis:
            redis.close()

    def redis_cpu_s(self) -> float:
        """CPU seconds of Redis up to now."""
        said = self._redis[0].info("cpu")
        return float(said["used_cpu_user"]) + float(said["used_cpu_sys"])

    def load(self, threads: int) -> None:
        def part(mine: int) -> None:
            blocks = self._blocks[mine::threads]
            place = memoryview(bytearray(HEAD_BYTES + self._size_bytes))
            deadline = time.monotonic() + _DEADLINE_S
            for size in self._store.fetch(blocks, [place] * len(blocks), deadline):
                assert size == len(place)

        _on_threads(part, threads)

    def save(self, threads: int) -> None:
        _on_threads(lambda mine: assert_all(self._store.store(self._outgoing[mine::threads])), threads)

    def load_by_redis_py(self, threads: int) -> None:
        def part(mine: int) -> None:
            for block in self._blocks[mine::threads]:
                assert self._redis[mine].get(block.key) is not None

        _on_threads(part, threads)

    def load_by_redis_py_at_once(self) -> None:
        assert None not in self._redis[0].mget([block.key for block in self._blocks])

    def save_by_redis_py(self, threads: int) -> None:
        def part(mine: int) -> None:
            for block in self._blocks[mine::threads]:
                self._redis[mine].set(block.key, self._value, nx=True, ex=3600)

        _on_threads(part, threads)

    def loop_back(self) -> None:
        """The same volume over a Unix socket, from another process that does nothing else."""
        place = memoryview(bytearray(HEAD_BYTES + self._size_bytes))
        with _sender(self._size_bytes, len(self._blocks)) as ours:
            left = self.volume
            while left:
                left -= ours.recv_into(place, min(left, self._size_bytes), socket.MSG_WAITALL)

    def forget(self) -> None:
        """Has none of the blocks in Redis any more."""
        self._redis[0].delete(*(block.key for block in self._blocks))


def assert_all(written: list[bool]) -> None:
    """A block that was there already would not have been moved."""
    assert all(written)


def claims(rows: list[Row]) -> Iterator[tuple[bool, str]]:
    """What is wanted of the transport, and whether it was seen: in the best round, and round by round.

    Like against like: one thread of ours against one of redis-py's, all blocks asked for at once. A GET each, whose values
    redis-py throws away one by one, is shown and not claimed: three times that is more than Redis itself sends.
    """
    by_name = {row.name: row.rates for row in rows}
    for verb, plain in (("load", "one MGET"), ("save", "a SET each")):
        ours, theirs = by_name[f"our sockets, {verb}"], by_name[f"redis-py, {verb}, {plain}"]
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        yield (
            ratio >= WANTED_RATIO,
            f"{verb}: at least 3 times redis-py, {plain} (median of rounds: {ratio:.1f})",
        )
    best = max(by_name["our sockets, load"])
    yield best >= WANTED_BYTES_PER_S, f"load: at least 1.5 GB/s (best round: {best / 1e9:.2f})"


def _on_threads(part: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=part, args=(mine,)) for mine in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def _sender(size_bytes: int, count: int) -> Iterator[socket.socket]:
    """A child process that sends so many blocks to the socket that is given."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            ours.close()
            block = bytes(size_bytes)
            for _ in range(count):
                theirs.sendall(block)
        finally:
            os._exit(0)
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        os.waitpid(child, 0)
