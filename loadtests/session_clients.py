"""Clients that hold sessions through several gateways while things break, and note what each turn said."""

import asyncio
import random
from collections.abc import Sequence
from uuid import uuid4

import aiohttp

from loadtests.session_history import Turn

ASK_WITHIN_S = 1.5
PAUSE_S = 0.02


class SessionClients:
    """The clients of one history."""

    def __init__(self, urls: Sequence[str], model: str, rng: random.Random) -> None:
        self._urls, self._model, self._rng = urls, model, rng
        self._name = uuid4().hex[:8]
        self.turns: list[Turn] = []
        self.failed = 0
        """Requests without an answer: to a gateway that was dead or stood still, or worse."""

    async def run(self, sessions: int, seconds: float) -> None:
        """Every session has a client that takes one turn after the other; every third one has two."""
        until = asyncio.get_running_loop().time() + seconds
        names = [f"{self._name}-{number}" for number in range(sessions)]
        async with _http() as http:
            await asyncio.gather(*(self._hold(http, name, until) for name in (*names, *names[::3])))

    async def _hold(self, http: aiohttp.ClientSession, session: str, until: float) -> None:
        while asyncio.get_running_loop().time() < until:
            await self._take_turn(http, session, self._rng.randrange(len(self._urls)))
            await asyncio.sleep(self._rng.uniform(0, PAUSE_S))

    async def last_turns(self) -> None:
        """One more turn of every session through every gateway, one after the other."""
        async with _http() as http:
            for gateway in range(len(self._urls)):
                sessions = sorted({turn.session for turn in self.turns})
                await asyncio.gather(*(self._take_turn(http, name, gateway) for name in sessions))

    async def _take_turn(self, http: aiohttp.ClientSession, session: str, gateway: int) -> None:
        loop = asyncio.get_running_loop()
        body = {"model": self._model, "messages": [{"role": "user", "content": session}], "max_tokens": 2}
        begun_at = loop.time()
        url = f"{self._urls[gateway]}/v1/chat/completions"
        try:
            async with http.post(url, json=body, headers={"x-session-id": session}) as response:
                await response.read()
                said = response.headers
        except (aiohttp.ClientError, TimeoutError):
            self.failed += 1
            return
        if response.status != 200 or "x-session-turn" not in said:
            self.failed += 1
            return
        place = int(said["x-session-epoch"]), int(said["x-session-turn"])
        durability, replica = said["x-session-durability"], said["x-served-replica"]
        self.turns.append(Turn(session, begun_at, loop.time(), gateway, *place, durability, replica))


def _http() -> aiohttp.ClientSession:
    # A connection of its own for each turn: one to a gateway that was killed would cost the next turn.
    connector = aiohttp.TCPConnector(force_close=True)
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_WITHIN_S), connector=connector)


async def until_settled(urls: Sequence[str], within_s: float = 20.0) -> None:
    """Returns once every gateway has its store, and has told it all that it knew."""
    async with asyncio.timeout(within_s), _http() as http:
        for url in urls:
            while not await _is_settled(http, url):  # noqa: ASYNC110 - another process's
                await asyncio.sleep(0.05)


async def _is_settled(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/status") as response:
            status = await response.json()
    except (aiohttp.ClientError, TimeoutError):
        return False
    return bool(status["ready"] and status["state_store"]["available"] and not status["sessions_unsaved"])
