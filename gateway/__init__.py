"""The request path: API, policy, pipeline, dispatch, health, telemetry."""
