"""A collector of traces: takes OTLP over HTTP, and keeps the spans for tests or only counts them for benches.

`python -m loadtests.collector` prints `ready URL` and counts; `GET /count` says how much came.
"""

import argparse
import asyncio
import sys
from typing import Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

MAX_BODY_BYTES = 64 * 1024 * 1024


class Collector:
    """Serves at `url` while its context lasts. `status` is what it answers from then on; 200 takes the spans.

    Args:
        keeps: whether spans are decoded and kept, by trace.
    """

    def __init__(self, keeps: bool = True) -> None:
        self._keeps = keeps
        self.status = 200
        self.bodies = 0
        self.size_bytes = 0
        self.headers: dict[str, str] = {}
        self.resource: dict[str, str] = {}
        self.traces: dict[str, list[Span]] = {}
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/v1/traces", self._take)
        app.router.add_get("/count", self._count)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.bodies, self.size_bytes = self.bodies + 1, self.size_bytes + len(body)
        self.headers = dict(request.headers)
        if self.status == 200 and self._keeps:
            self._keep(ExportTraceServiceRequest.FromString(body))
        return web.Response(status=self.status, content_type="application/x-protobuf")

    def _keep(self, sent: ExportTraceServiceRequest) -> None:
        for group in sent.resource_spans:
            self.resource = {a.key: a.value.string_value for a in group.resource.attributes}
            for scope in group.scope_spans:
                for span in scope.spans:
                    self.traces.setdefault(span.trace_id.hex(), []).append(span)

    async def _count(self, _: web.Request) -> web.Response:
        return web.json_response({"messages": self.bodies, "size_bytes": self.size_bytes})


async def _serve() -> None:
    async with Collector(keeps=False) as collector:
        sys.stdout.write(f"ready {collector.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    argparse.ArgumentParser(prog="python -m loadtests.collector", description=__doc__).parse_args()
    asyncio.run(_serve())


if __name__ == "__main__":
    main()
