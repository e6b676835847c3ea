"""Engines that live as long as the session, healed and emptied between tests; a gateway is each test's own."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop

from tests.rig import EngineProcess


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], object]]:
    """The loop that `graceway serve` runs on."""
    return {"uvloop": uvloop.new_event_loop}


class Engines:
    """Two replicas of a primary tier and one of a small one. Eight slots each, two milliseconds a token."""

    def __init__(self) -> None:
        self.a = EngineProcess(name="a", token_ms=2)
        self.b = EngineProcess(name="b", token_ms=2)
        self.small = EngineProcess(name="small", served_model="small", token_ms=2, slots=32)

    @property
    def all(self) -> tuple[EngineProcess, EngineProcess, EngineProcess]:
        return self.a, self.b, self.small

    @property
    def primary(self) -> tuple[EngineProcess, EngineProcess]:
        return self.a, self.b

    async def heal(self) -> None:
        """As new, whatever a test did to them."""
        for engine in self.all:
            engine.thaw()
            if not engine.is_running:
                await engine.restart()
            await engine.reset()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def _engines() -> AsyncIterator[Engines]:
    engines = Engines()
    try:
        for engine in engines.all:
            await engine.start()
        yield engines
    finally:
        for engine in engines.all:
            await engine.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def engines(_engines: Engines) -> Engines:
    await _engines.heal()
    return _engines


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Where a test's config goes."""
    return tmp_path / "gateway.yaml"
