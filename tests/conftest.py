"""What every test starts from."""

import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from loadtests.redis_groups import Cluster, running_cluster


def pytest_configure() -> None:
    # A shell that starts tests in the background has SIGINT ignored, and every process below would inherit that: then
    # what a test says of Ctrl-C would hang on who started it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster() -> AsyncIterator[Cluster]:
    """A Redis Cluster of three, for all tests that leave it as they found it."""
    async with running_cluster() as found:
        yield found


@pytest.fixture
def brief_hope(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody can go on, that is said after a second rather than after ten."""
    monkeypatch.setattr("gateway.health.HOPELESS_S", 1.0)
    monkeypatch.setattr("gateway.policy.decide.SEAM_HOPELESS_S", 1.0)
