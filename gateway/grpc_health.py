"""`grpc.health.v1`: the gateway's readiness and each model's, for probes and clients that know this service."""

import asyncio
from collections.abc import AsyncIterator

import grpc
from grpc_health.v1 import health_pb2 as pb

from gateway.grpc_api import SERVICE, Context, Serves, is_model_ready, let_look

HEALTH = "grpc.health.v1.Health"
_LOOK_S = 0.5


class HealthService:
    """The methods of `grpc.health.v1.Health`. A service is the empty name (all models), the protocol's, or a model's."""

    def __init__(self, gateway: Serves) -> None:
        self._gateway = gateway

    def _status(self, service: str) -> int:
        names = [card["id"] for card in self._gateway.models()["data"]]
        if service in ("", SERVICE):
            is_ready = self._gateway.is_ready
        elif service in names:
            is_ready = is_model_ready(self._gateway, service)
        else:
            return int(pb.HealthCheckResponse.SERVICE_UNKNOWN)
        return int(pb.HealthCheckResponse.SERVING if is_ready else pb.HealthCheckResponse.NOT_SERVING)

    async def _let_ask(self, service: str, context: Context) -> None:
        """Whether it is ready is told to anybody, as HTTP does; about its models to whoever may know them."""
        if service not in ("", SERVICE):
            await let_look(self._gateway, context)

    async def Check(self, asked: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:
        await self._let_ask(asked.service, context)
        status = self._status(asked.service)
        if status == pb.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service '{asked.service}'")
        return pb.HealthCheckResponse(status=status)

    async def Watch(
        self, asked: pb.HealthCheckRequest, context: Context
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        await self._let_ask(asked.service, context)
        told: int | None = None
        while True:
            status = self._status(asked.service)
            if status != told:
                told = status
                yield pb.HealthCheckResponse(status=status)
            if self._gateway.status()["draining"]:
                return
            await asyncio.sleep(_LOOK_S)

    async def List(self, _: pb.HealthListRequest, context: Context) -> pb.HealthListResponse:
        await let_look(self._gateway, context)
        names = ["", SERVICE, *(card["id"] for card in self._gateway.models()["data"])]
        statuses = {name: pb.HealthCheckResponse(status=self._status(name)) for name in names}
        return pb.HealthListResponse(statuses=statuses)
