"""The request path: API, policy, pipeline, dispatch, health, telemetry."""

from gateway.compiled import folders

__path__[:0] = folders("gateway")
