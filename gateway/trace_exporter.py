"""Sends the spans of sampled requests to a collector, in batches and from a thread of its own.

Nothing waits for it: what it can't take is dropped and counted, and a collector that is gone costs one attempt a second.
"""

import contextlib
import logging
import os
import socket
from collections import deque
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from time import perf_counter_ns, time_ns
from urllib.parse import urlsplit

from gateway.backlog import Backlog
from gateway.otlp import batch_of, resource_of, spans_of
from gateway.specs import TracingSpec
from gateway.trail import Trail

log = logging.getLogger("graceway.traces")

EVERY_S = 1.0
"""A message costs as much as the spans of hundreds of requests, whatever it carries."""
WAITING = 8192
"""Requests whose spans may wait."""
TOGETHER = 32
"""Requests whose spans are made in one go, on the event loop: it is held up for less than a tenth of a millisecond. Made one
at a time they cost several times as much, as the code is out of the processor's cache by then; so do those of a thread
that takes the interpreter from the loop.
"""
BATCH = 64
"""So many of these go in one message: some two megabytes, a tenth of what collectors take by default."""
TIMEOUT_S = 5.0
CLOSE_S = 2.0
VERSION_PATH = "/v1/traces"

_Packed = tuple[int, bytes]
"""How many requests, and their spans."""


class TraceExporter(Backlog[_Packed]):
    """Takes the trails of sampled requests that have ended."""

    def __init__(self, spec: TracingSpec) -> None:
        assert spec.url is not None, "without an address there is nothing to export to"
        super().__init__("trace exporter", EVERY_S, WAITING // TOGETHER)
        self.spec = spec
        self._fresh: deque[Trail] = deque()
        instance = f"{socket.gethostname()}:{os.getpid()}"
        self._resource = resource_of({"service.name": spec.service, "service.instance.id": instance})
        self._connection: HTTPConnection | None = None
        self._is_lost = False
        self.exported = 0
        """Requests whose spans arrived."""

    def stop(self, within_s: float = CLOSE_S) -> None:
        super().stop(within_s)

    def take(self, trail: Trail) -> None:
        """Called from the event loop; never waits."""
        self._fresh.append(trail)
        if len(self._fresh) >= TOGETHER:
            self._pack()

    def _pack(self) -> None:
        """Called from the thread, too, for those that no others come after."""
        trails: list[Trail] = []
        with contextlib.suppress(IndexError):
            while True:
                trails.append(self._fresh.popleft())
        if len(self._waiting) >= self._most:
            self.dropped += len(trails)
        elif trails:
            try:
                # The wall clock as it is now: it may have been set since the last ones.
                spans = spans_of(trails, time_ns() - perf_counter_ns())
            except (
                Exception
            ) as error:  # what can't be told of requests must not fail the one that ends just now
                self.dropped += len(trails)
                log.warning("the spans of %d requests can't be made: %r", len(trails), error)
            else:
                self._waiting.append((len(trails), spans))

    def _work_off(self) -> None:
        self._pack()
        has_sent = True
        while self._waiting and has_sent:
            has_sent = self._send_some()

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _send_some(self) -> bool:
        """One batch; whether it arrived."""
        packed = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        requests = sum(count for count, _ in packed)
        try:
            self._post(batch_of(self._resource, [spans for _, spans in packed]))
        except (OSError, HTTPException, ValueError) as error:
            self._lose(requests, str(error) or type(error).__name__)
            return False
        self.exported += requests
        if self._is_lost:
            self._is_lost = False
            log.info("the trace collector takes spans again")
        return True

    def _lose(self, requests: int, why: str) -> None:
        self.dropped += requests
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if not self._is_lost:
            self._is_lost = True
            log.warning("the trace collector takes no spans (%s); requests go on without", why)

    def _post(self, body: bytes) -> None:
        parts = urlsplit(self.spec.url or "")
        if self._connection is None:
            kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
            self._connection = kind(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        headers = {**self.spec.headers, "content-type": "application/x-protobuf"}
        path = parts.path.rstrip("/").removesuffix(VERSION_PATH) + VERSION_PATH
        self._connection.request("POST", path, body, headers)
        answer = self._connection.getresponse()
        answer.read()
        if answer.status >= 300:
            raise ValueError(f"HTTP {answer.status}")
