"""A simulated engine: vLLM's OpenAI server as seen from outside, fast enough to disappear, failing on demand.

`python -m loadtests.engine --port 0 --slots 8 --token-ms 20` prints `ready http://HOST:PORT` once it serves.
Beside vLLM's own paths: POST /sim/fault (see `loadtests.faults`), GET /sim/stats and /sim/requests,
POST /sim/reset.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, cast

import orjson
import uvloop

from loadtests.asked import Asked, RefusedError, read_chat, read_completion, read_json
from loadtests.decoding import Decoder, Pace, Sequence
from loadtests.embeddings import embedding
from loadtests.faults import HEALTHY, KINDS, Fault, FaultSwitch, parse_fault
from loadtests.generation import Generation, Streamed, Whole, failure_body
from loadtests.prefixes import BLOCK_TOKENS, PrefixCache
from loadtests.shapes import Envelope, Json
from loadtests.telemetry import Telemetry
from loadtests.tokens import detokenize, encode, render_chat
from loadtests.wire import Connection, Pending, Request

if TYPE_CHECKING:
    from loadtests.kv_publisher import KvPublisher

REQUESTS_KEPT = 64


@dataclass(frozen=True, slots=True)
class Options:
    """How one simulated engine is set up."""

    served_model: str = "m"
    name: str = "sim"
    api_key: str | None = None
    pace: Pace = field(default_factory=Pace)
    kv_blocks: int = 8192
    kv_events: str = ""
    """Where it publishes what its prefix cache holds; empty: nowhere."""
    max_model_len: int = 32_768
    tokens_per_event: int = 1
    token_ids: str = "yes"
    """What becomes of `return_token_ids`, which not every server knows: `yes`, `ignored` or `refused`."""
    fault: Fault = HEALTHY


class Engine:
    """Routes requests, owns the decoder, and lets the fault in force happen."""

    def __init__(self, options: Options, loop: asyncio.AbstractEventLoop) -> None:
        self._options = options
        self._loop = loop
        self._telemetry = Telemetry()
        self._prefixes = PrefixCache(options.kv_blocks, _publisher(options.kv_events))
        self._decoder = Decoder(loop, options.pace, self._telemetry, self._prefixes)
        self._switch = FaultSwitch()
        self._active: set[Generation] = set()
        self._seen: deque[Json] = deque(maxlen=REQUESTS_KEPT)
        self._routes = self._route_table()
        self._set_fault(options.fault)

    def _route_table(self) -> dict[tuple[str, str], Callable[[Request, Connection], Pending | None]]:
        return {
            ("POST", "/v1/chat/completions"): self._generate,
            ("POST", "/v1/completions"): self._generate,
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/embeddings"): self._embeddings,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("GET", "/health"): self._health,
            ("GET", "/version"): lambda _, connection: _json(connection, {"version": "0.32.0"}),
            ("GET", "/metrics"): self._metrics,
            ("POST", "/sim/fault"): self._fault,
            ("GET", "/sim/stats"): lambda _, connection: _json(connection, self.stats()),
            ("GET", "/sim/requests"): lambda _, connection: _json(connection, list(self._seen)),
            ("POST", "/sim/reset"): self._reset,
        }

    def serve(self, request: Request, connection: Connection) -> Pending | None:
        """Answers a request now, or returns what is under way."""
        route = self._routes.get((request.method, request.path))
        if route is None:
            return _json(connection, {"detail": "Not Found"}, 404)
        if request.path.startswith("/v1") and not self._may(request):
            return _json(connection, {"error": "Unauthorized"}, 401)
        try:
            return route(request, connection)
        except RefusedError as refusal:
            return _json(connection, refusal.body, refusal.status)

    def _may(self, request: Request) -> bool:
        key = self._options.api_key
        return key is None or request.headers.get("authorization") == f"Bearer {key}"

    def _generate(self, request: Request, connection: Connection) -> Pending | None:
        self._note(request)
        is_chat = request.path == "/v1/chat/completions"
        read = read_chat if is_chat else read_completion
        asked = read(read_json(request.body), self._options.served_model, self._options.max_model_len)
        if asked.wants_ids and self._options.token_ids != "yes":
            if self._options.token_ids == "refused":
                raise RefusedError(400, "Unrecognized request argument supplied: return_token_ids")
            asked = replace(asked, wants_ids=False)
        fault = self._switch.draw()
        if fault.kind == "error":
            return self._refuse(fault, connection)
        generation = self._generation(asked, request, connection)
        self._active.add(generation)
        generation.start(fault)
        return generation

    def _generation(self, asked: Asked, request: Request, connection: Connection) -> Generation:
        prefix = "chatcmpl" if asked.is_chat else "cmpl"
        request_id = request.headers.get("x-request-id") or uuid.uuid4().hex
        envelope = Envelope(asked, f"{prefix}-{request_id}", int(time.time()))
        parts = (envelope, connection, self._decoder, self._telemetry, self._active)
        if asked.is_stream:
            return Streamed(*parts, self._options.tokens_per_event)
        return Whole(*parts, lambda asked: self._describe(asked, request))

    def _describe(self, asked: Asked, request: Request) -> Json:
        """What came through to the engine, for a test to look at."""
        return {"name": self._options.name, "unknown": asked.unknown, "headers": _telling(request)}

    def _refuse(self, fault: Fault, connection: Connection) -> Pending | None:
        self._telemetry.errors += 1
        headers = {} if fault.retry_after is None else {"retry-after": f"{fault.retry_after:g}"}
        body = orjson.dumps(failure_body(fault.status, "injected fault"))
        connection.reply(fault.status, body, headers=headers)
        return None

    def _note(self, request: Request) -> None:
        self._telemetry.requests += 1
        body = request.body.decode("utf-8", "replace") if len(request.body) < 65536 else ""
        self._seen.append({"path": request.path, "headers": _telling(request), "body": body})

    def _models(self, _: Request, connection: Connection) -> None:
        model = self._options.served_model
        card: Json = {"id": model, "object": "model", "created": int(time.time()), "owned_by": "vllm"}
        card |= {
            "root": model,
            "parent": None,
            "max_model_len": self._options.max_model_len,
            "permission": [],
        }
        _json(connection, {"object": "list", "data": [card]})

    def _embeddings(self, request: Request, connection: Connection) -> Pending | None:
        body = read_json(request.body)
        self._note(request)
        fault = self._switch.draw()
        if fault.kind == "error":
            return self._refuse(fault, connection)
        if fault.kind == "hang":
            return _Late(self._loop, None, lambda: None)
        given = body.get("input")
        texts = [str(text) for text in given] if isinstance(given, list) else [str(given)]
        data = [{"object": "embedding", "index": i, "embedding": embedding(t)} for i, t in enumerate(texts)]
        tokens = sum(len(encode(text)) for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        model = self._options.served_model
        return _json(connection, {"object": "list", "model": model, "data": data, "usage": usage})

    def _tokenize(self, request: Request, connection: Connection) -> None:
        body = read_json(request.body)
        if "messages" in body:
            ids = render_chat(
                cast(list[Json], body["messages"]),
                add_generation_prompt=bool(body.get("add_generation_prompt", True)),
                continue_final_message=bool(body.get("continue_final_message")),
            )
        else:
            ids = encode(str(body.get("prompt", "")))
        _json(connection, {"count": len(ids), "max_model_len": self._options.max_model_len, "tokens": ids})

    def _detokenize(self, request: Request, connection: Connection) -> None:
        tokens = cast(list[int], read_json(request.body).get("tokens") or [])
        _json(connection, {"prompt": detokenize(tokens)})

    def _health(self, _: Request, connection: Connection) -> Pending | None:
        fault = self._switch.fault
        if fault.kind == "slow_health":
            return _Late(self._loop, fault.seconds, lambda: connection.reply(200, b""))
        if fault.kind == "hang" and fault.health:
            return _Late(self._loop, None, lambda: None)
        connection.reply(503 if fault.kind == "unhealthy" else 200, b"")
        return None

    def _metrics(self, _: Request, connection: Connection) -> None:
        decoder = self._decoder
        used = min(decoder.held_tokens / max(self._options.kv_blocks * BLOCK_TOKENS, 1), 1.0)
        text = self._telemetry.render(self._options.served_model, decoder.running, decoder.waiting, used)
        connection.reply(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _fault(self, request: Request, connection: Connection) -> None:
        try:
            fault = parse_fault(read_json(request.body))
        except (ValueError, TypeError) as error:
            raise RefusedError(400, str(error)) from None
        _json(connection, {"fault": fault.kind})
        self._loop.call_soon(self._set_fault, fault)

    def _set_fault(self, fault: Fault) -> None:
        """The fault is in force for what comes and for what is under way."""
        if fault.kind == "die" and fault.after_tokens is None:
            signal.raise_signal(signal.SIGKILL)
        self._switch.set(fault)
        self._decoder.slowdown = fault.factor if fault.kind == "slow" else 1.0
        for generation in self._active:
            generation.fault = self._switch.draw()
        self._decoder.afflict(_fault_of)

    def stats(self) -> Json:
        telemetry, decoder = self._telemetry, self._decoder
        return {
            "name": self._options.name,
            "running": decoder.running,
            "waiting": decoder.waiting,
            "peak_running": decoder.peak_running,
            "requests": telemetry.requests,
            "served": telemetry.served,
            "aborted": telemetry.aborted,
            "errors": telemetry.errors,
            "tokens": telemetry.tokens,
            "prompts_seen": telemetry.sequences,
            "prompt_tokens": telemetry.prompt_tokens,
            "cached_tokens": telemetry.cached_tokens,
            "fault": asdict(self._switch.fault),
        }

    def _reset(self, _: Request, connection: Connection) -> None:
        """Counts start anew, caches are empty, faults are healed; what is under way goes on."""
        self._telemetry.reset()
        self._prefixes.clear()
        self._seen.clear()
        self._decoder.peak_running = self._decoder.running
        self._set_fault(HEALTHY)
        _json(connection, self.stats())


def _publisher(endpoint: str) -> "KvPublisher | None":
    if not endpoint:
        return None
    # Who publishes nothing need not wait for ZeroMQ to be imported.
    from loadtests.kv_publisher import KvPublisher

    return KvPublisher(endpoint)


def _fault_of(sequence: Sequence) -> Fault:
    return cast(Generation, sequence.sink).fault


class _Late:
    """An answer that comes after `delay_s`, or never."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, delay_s: float | None, reply: Callable[[], None]
    ) -> None:
        self._timer = None if delay_s is None else loop.call_later(delay_s, reply)

    def abandon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _json(connection: Connection, body: object, status: int = 200) -> Pending | None:
    connection.reply(status, orjson.dumps(body))
    return None


def _telling(request: Request) -> Json:
    """The headers that a test may want to see; never a key."""
    shown = ("traceparent", "tracestate", "user-agent", "accept", "content-type")
    headers: Json = {
        name: value for name, value in request.headers.items() if name in shown or name[:2] == "x-"
    }
    return headers | {"has_authorization": "authorization" in request.headers}


async def serve_forever(options: Options, host: str, port: int) -> None:
    """Serves until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    engine = Engine(options, loop)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = await loop.create_server(
        lambda: Connection(engine.serve), host, port, backlog=1024, reuse_address=True
    )
    bound = server.sockets[0].getsockname()[1]
    sys.stdout.write(f"ready http://{host}:{bound}\n")
    sys.stdout.flush()
    await stopped.wait()
    server.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.engine", description="A simulated engine.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--served-model", default="m")
    parser.add_argument("--name", default="sim", help="how it calls itself in /sim/stats and in answers")
    parser.add_argument("--api-key")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--token-ms", type=float, default=20.0, help="0: as fast as it can")
    parser.add_argument("--prefill-tokens-per-s", type=float, default=20_000.0, help="0: takes no time")
    parser.add_argument("--kv-blocks", type=int, default=8192, help="of 16 tokens; 0: no prefix cache")
    parser.add_argument("--kv-events", default="", help="a ZeroMQ endpoint to publish the cache's events at")
    parser.add_argument("--max-model-len", type=int, default=32_768)
    parser.add_argument("--tokens-per-event", type=int, default=1)
    parser.add_argument("--token-ids", choices=("yes", "ignored", "refused"), default="yes")
    parser.add_argument("--fault", default='{"kind":"none"}', help=f"JSON, or one of {', '.join(KINDS)}")
    return parser


def options_from(arguments: argparse.Namespace) -> Options:
    fault = arguments.fault if arguments.fault.startswith("{") else f'{{"kind":"{arguments.fault}"}}'
    return Options(
        served_model=arguments.served_model,
        name=arguments.name,
        api_key=arguments.api_key,
        pace=Pace(arguments.slots, arguments.token_ms / 1000, arguments.prefill_tokens_per_s),
        kv_blocks=arguments.kv_blocks,
        kv_events=arguments.kv_events,
        max_model_len=arguments.max_model_len,
        tokens_per_event=arguments.tokens_per_event,
        token_ids=arguments.token_ids,
        fault=parse_fault(orjson.loads(fault)),
    )


def main() -> None:
    arguments = _parser().parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve_forever(options_from(arguments), arguments.host, arguments.port))


if __name__ == "__main__":
    main()
