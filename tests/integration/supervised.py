"""Supervised replicas of one tier, on simulated engines."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from replicas.engines import EngineSpec
from replicas.lifecycle import Patience
from replicas.supervisor import ReplicaSpec, Supervisor
from state_store.protocol import StateStore
from tests.integration.client import Json
from tests.integration.rig import PATIENT

ROOT = Path(__file__).parents[2]
ENGINE = (
    sys.executable,
    "-m",
    "loadtests.engine",
    "--host",
    "{host}",
    "--port",
    "{port}",
    "--token-ms",
    "10",
)
TIER: Json = {
    **{"name": "primary", "backend": "vllm", "model": "m", "served_model": "m"},
    **{"slots": 8, "slo": PATIENT},
}
QUICK = Patience(check_every_s=0.2, drain_settle_s=0.7, stop_grace_s=1.0, backoff_s=0.1)


@asynccontextmanager
async def supervised(store: StateStore, *names: str) -> AsyncIterator[dict[str, Supervisor]]:
    """Supervisors of these names, ready one after the other."""
    engine = EngineSpec("command", "m", "m", 8, argv=ENGINE, env={"PYTHONPATH": str(ROOT)})
    found: dict[str, Supervisor] = {}
    async with AsyncExitStack() as stack:
        for name in names:
            spec = ReplicaSpec(name, "chat", "primary", engine, heartbeat_s=0.2)
            found[name] = supervisor = Supervisor(spec, store, patience=QUICK)
            running = asyncio.create_task(supervisor.run())
            stack.push_async_callback(asyncio.wait, [running])
            stack.push_async_callback(supervisor.stop)
            await asyncio.wait_for(supervisor.until_ready(), 20)
        yield found
