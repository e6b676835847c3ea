"""Load on any OpenAI-compatible server, for Locust: `locust -f loadtests/locustfile.py --host URL [USER …]`.

Users: Chats (several turns, streamed, each token verified), GrpcChats (the same over gRPC, where `--grpc` says),
Completions (not streamed), LeavingClients (hang up in mid-stream), SlowReaders, Bursts, and OpenLoop (arrivals that wait
for nobody, see `--arrivals`). Name those that you want on the command line, or pick them in the web UI with
`--class-picker`. With `--keys` they are of several tenants. The limits of `--max-…` decide the exit status; `--help` lists
them.
"""

import logging
import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import gevent
import orjson
from gevent.pool import Pool
from locust import User, constant, events, task
from locust.env import Environment
from locust.runners import MasterRunner

from loadtests import stream_socket
from loadtests.arrivals import Share, arrivals
from loadtests.client import Question
from loadtests.generator import DISPATCHES, own_lag
from loadtests.grpc_stream import ask_grpc
from loadtests.judgement import Judgement
from loadtests.load_metrics import LoadMetrics, watch_lag
from loadtests.load_options import LoadOptions, add_options, read_options
from loadtests.prompts import recorded_prompt
from loadtests.thresholds import Thresholds
from loadtests.tokens import expected_answer
from loadtests.traces import read_trace

EXIT_MISSED = 1
BURST = 16
LOOK_S = 0.1
REFUSED_S = 1.0
"""Before whoever was refused asks again."""
log = logging.getLogger("graceway.load")
_numbers = count()
"""Of the users of this process: tenants take turns."""

events.init_command_line_parser.add_listener(add_options)


@events.init.add_listener
def _leave_out_whom_nobody_hears(environment: Environment, **_: object) -> None:
    """Without an address for gRPC there is no load over gRPC; whoever names those users has to give one."""
    options = environment.parsed_options
    if options is None or options.grpc:
        return
    if GrpcChats.__name__ in (options.user_classes or ()):
        raise SystemExit("GrpcChats need --grpc HOST:PORT")
    environment.user_classes[:] = [kind for kind in environment.user_classes if kind is not GrpcChats]


@events.test_start.add_listener
def _begin(environment: Environment, **_: object) -> None:
    """In the master: arrivals are dealt out among the workers. Elsewhere: the generator's own lag is watched."""
    if isinstance(environment.runner, MasterRunner):
        OpenLoop.fixed_count = environment.parsed_options.shares = environment.runner.worker_count
        return
    options = read_options(environment.parsed_options)
    environment.graceway_lag = gevent.spawn(watch_lag, LoadMetrics(environment, options.verify))
    environment.graceway_begun = time.monotonic(), time.process_time()


@events.test_stopping.add_listener
def _look_at_the_core(environment: Environment, **_: object) -> None:
    environment.graceway_ended = time.monotonic(), time.process_time()


@events.test_stop.add_listener
def _end(environment: Environment, **_: object) -> None:
    watching = getattr(environment, "graceway_lag", None)
    if watching is not None:
        watching.kill()


@events.quitting.add_listener
def _decide(environment: Environment, **_: object) -> None:
    """The limits alone decide the exit status; a worker leaves it to its master."""
    if environment.parsed_options is None or environment.parsed_options.worker:
        return
    entries = list(environment.stats.entries.values())
    for line in own_lag(entries, _core_share(environment)).text().splitlines():
        log.info("%s", line)
    misses = Thresholds.read(environment.parsed_options).misses(entries)
    for miss in misses:
        log.error("limit not kept: %s", miss)
    log.info("%s", "the run failed" if misses else "all limits were kept")
    environment.process_exit_code = EXIT_MISSED if misses else 0


def _core_share(environment: Environment) -> float:
    """How much of a core this process took while it loaded; of a master with workers, nothing is known."""
    begun, ended = (getattr(environment, f"graceway_{when}", None) for when in ("begun", "ended"))
    if begun is None or ended is None:
        return 0.0
    return float((ended[1] - begun[1]) / max(ended[0] - begun[0], 1e-9))


class GracewayUser(User):
    """What all users share."""

    abstract = True

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.options: LoadOptions = read_options(environment.parsed_options)
        self.metrics = LoadMetrics(environment, self.options.verify)
        self.name = uuid.uuid4().hex[:12]
        self.rng = random.Random(self.name)
        tenant, self._key = self.options.keys[next(_numbers) % len(self.options.keys)]
        self.kind = f"{type(self).__name__} {tenant}".strip()
        self.asked = 0

    def question(self, leaves_after_tokens: int | None = None) -> Question:
        """A chat of one turn that nobody else asks."""
        self.asked += 1
        opening = self.options.prompts.opening(self.rng)
        messages = (*opening, self.options.prompts.question(f"{self.name} {self.asked}"))
        tokens = self.options.answer_tokens
        return Question(messages, tokens, self.headers(), leaves_after_tokens=leaves_after_tokens)

    def headers(self, session: str = "") -> dict[str, str]:
        told = {"x-priority": self.options.priority(self.rng)}
        if self._key:
            told["authorization"] = f"Bearer {self._key}"
        return told | {"x-session-id": session} if session else told

    def stream(
        self, question: Question, pause: stream_socket.Pause | None = None, due_at: float | None = None
    ) -> tuple[Judgement, str]:
        """Asks, tells what came of it, and returns that with the text."""
        record = stream_socket.ask(self.host, self.options.model, question, due_at, pause=pause)
        return self.metrics.tell(self.kind, record, times=pause is None), record.text


class Chats(GracewayUser):
    """A person who chats: a session of several turns, each with all that was said before."""

    weight = 10
    wait_time = constant(0.0)

    @task
    def chat(self) -> None:
        messages = self.options.prompts.opening(self.rng)
        session = uuid.uuid4().hex
        for _ in range(self.options.turns):
            self.asked += 1
            messages = (*messages, self.options.prompts.question(f"{self.name} {self.asked}"))
            judgement, text = self.stream(
                Question(messages, self.options.answer_tokens, self.headers(session))
            )
            if judgement.kind != "whole" or self._state != "running":
                return
            messages = (*messages, {"role": "assistant", "content": text})
            gevent.sleep(self.rng.expovariate(1 / self.options.think_s) if self.options.think_s else 0)


class GrpcChats(Chats):
    """The same over gRPC."""

    weight = 2

    def stream(
        self, question: Question, pause: stream_socket.Pause | None = None, due_at: float | None = None
    ) -> tuple[Judgement, str]:
        record = ask_grpc(self.options.grpc, self.options.model, question, due_at)
        return self.metrics.tell(self.kind, record), record.text


class Streams(GracewayUser):
    """One stream after the other, for ever: so many are open as there are users."""

    weight = 1
    wait_time = constant(0.0)

    @task
    def read(self) -> None:
        question = self.question()
        # Not all in one moment, as they would be if all began and ended together.
        tokens = self.rng.randint(max(question.max_tokens // 2, 1), question.max_tokens)
        wants_stamps = self.options.verify == "tokens"
        judgement, _ = self.stream(replace(question, max_tokens=tokens, wants_stamps=wants_stamps))
        if judgement.kind != "whole":
            gevent.sleep(REFUSED_S)


class Completions(GracewayUser):
    """A program that wants whole texts, one after the other."""

    weight = 3
    wait_time = constant(0.5)

    @task
    def complete(self) -> None:
        self.asked += 1
        options = self.options
        prompt = str(options.prompts.question(f"{self.name} {self.asked}")["content"])
        body = {"model": options.model, "prompt": prompt, "max_tokens": options.answer_tokens}
        begun_at = time.monotonic()
        status, received, answer = stream_socket.complete(
            self.host, orjson.dumps(body | {"ignore_eos": True}), self.headers()
        )
        judgement = self._judged(status, received, answer, prompt)
        self.metrics.tell_outcome(self.kind, judgement, time.monotonic() - begun_at, received)

    def _judged(self, status: int, headers: dict[str, str], answer: bytes, prompt: str) -> Judgement:
        if status in (429, 503) and "x-shed-reason" in headers:
            return Judgement("shed", headers["x-shed-reason"])
        if status != 200:
            return Judgement("failed", f"status {status}" if status else "cut")
        text = orjson.loads(answer)["choices"][0]["text"]
        is_own = headers.get("x-served-tier") == "canned"
        if self.options.verify == "shape" or is_own:
            return Judgement("whole") if text else Judgement("failed", "no token")
        expected = expected_answer(prompt, self.options.answer_tokens, ignore_eos=True).text
        return Judgement("whole") if text == expected else Judgement("failed", "wrong text")


class LeavingClients(GracewayUser):
    """Clients that hang up in mid-stream and come back with something else."""

    weight = 1
    wait_time = constant(1.0)

    @task
    def leave(self) -> None:
        after = self.rng.randint(1, max(self.options.answer_tokens // 2, 1))
        self.stream(self.question(leaves_after_tokens=after))


class SlowReaders(GracewayUser):
    """Clients behind a slow line: they read a little, then nothing for a while."""

    weight = 1
    wait_time = constant(1.0)
    pause_s = 0.2

    @task
    def read_slowly(self) -> None:
        self.stream(self.question(), pause=lambda: gevent.sleep(self.pause_s))


class Bursts(GracewayUser):
    """Many requests in the same moment, then silence."""

    weight = 1
    wait_time = constant(5.0)

    @task
    def burst(self) -> None:
        burst = Pool(BURST)
        for _ in range(BURST):
            burst.spawn(self.stream, self.question())
        burst.join()


class OpenLoop(GracewayUser):
    """Arrivals that wait for nobody: one dispatcher per process, however slow the answers are."""

    fixed_count = 1

    @task
    def dispatch(self) -> None:
        streams = Pool()
        begun_at = time.monotonic()
        for offset_s, question in self._due():
            due_at = begun_at + offset_s
            while (left_s := due_at - time.monotonic()) > 0 and self._state == "running":
                gevent.sleep(min(left_s, LOOK_S))
            if self._state != "running":
                break
            self.metrics.tell_lag(DISPATCHES, time.monotonic() - due_at)
            streams.spawn(self.stream, question, None, due_at)
        streams.join()
        while self._state == "running":
            gevent.sleep(LOOK_S)

    def _due(self) -> Iterator[tuple[float, Question]]:
        options = self.options
        share = Share(max(self.environment.runner.worker_index, 0), self.environment.parsed_options.shares)
        if not options.form.is_replay:
            for offset_s in arrivals(options.form, options.seed, share):
                yield offset_s, self.question()
            return
        recorded = read_trace(Path(options.form.path))
        for number in range(share.index, len(recorded), share.count):
            one = recorded[number]
            messages = tuple(recorded_prompt(one, number))
            yield one.at_s / options.form.speed, Question(messages, max(one.answer_tokens, 1), self.headers())
