"""What a paid tier may cost: money held for each request by estimate, paid by usage, shared by all gateways of a store.

Every gateway keeps its own claims in the store and reads the others' (`gateway.policy.purse`): first it writes the larger
claim, then it adds up all of them, and takes it back when that is too much. Two that claim at once may both step back;
none can miss the other. Without the store a gateway spends what it has claimed, and a small share of the amount beyond.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import time
from typing import Any
from uuid import uuid4

from gateway.events import lasting
from gateway.failure import ExchangeFailed
from gateway.policy.purse import Account
from gateway.request import Request
from gateway.specs import BudgetSpec, PriceSpec
from gateway.tokens import estimate
from state_store.protocol import StateStore, StateStoreUnavailable
from state_store.records import Record

GUESSED_ANSWER_TOKENS = 1024
"""Of an answer whose length nobody bounded."""
PERIOD_S = {"hour": 3600, "day": 86_400}
KEPT_S = 3600.0
"""How long claims outlive their period, for clocks that differ."""
FREE = frozenset(
    {"refused", "unreachable", "rejected", "backpressure", "budget", "context", "token_ids_refused"}
)
"""How attempts end that a host does not charge for."""
PER = 1e6
"""Tokens that a price is for."""


class OverBudget(ExchangeFailed):
    """There is not enough money left for this request."""

    def __init__(self, tier: str) -> None:
        super().__init__("budget", f"the budget of {tier} does not suffice")


@dataclass(frozen=True, slots=True)
class ClaimRecord(Record):
    """One gateway's claims of one period."""

    claimed: float
    spent: float


@dataclass(slots=True)
class Hold:
    """Money that waits for one request's end."""

    purse: "Purse"
    period: int
    cost: float
    prompt_tokens: int

    def settle(self, result: str, usage: Mapping[str, Any] | None, answer_tokens: int) -> None:
        """Pays: by usage where the host told it; else by what was asked and what has come."""
        purse, price = self.purse, self.purse.price
        if result in FREE or result.startswith("http_"):
            cost = 0.0
        else:
            told = usage or {}
            prompt = int(told.get("prompt_tokens") or self.prompt_tokens)
            answer = max(answer_tokens, int(told.get("completion_tokens") or 0))
            cost = (prompt * price.prompt + answer * price.answer) / PER
        purse.account.settle(self.period, self.cost, cost)
        purse.look()


class Purse:
    """The budget of one tier, as this gateway sees it.

    Args:
        changed: called when it becomes spent, and when it no longer is.
    """

    def __init__(
        self,
        name: str,
        budget: BudgetSpec,
        price: PriceSpec,
        store: StateStore,
        changed: Callable[["Purse"], None],
        wall: Callable[[], float] = time,
    ) -> None:
        self.name, self.budget, self.price = name, budget, price
        self._store, self._changed, self._wall = store, changed, wall
        self._me, self._group = uuid4().hex, f"spending:{name}"
        self.account = Account(budget.amount, budget.without_store * budget.amount, self._period())
        self.is_spent = False
        self._short_of = 0.0
        self._claiming = asyncio.Lock()
        self._told = ClaimRecord(0.0, 0.0)

    def _period(self) -> int:
        return int(self._wall() / PERIOD_S[self.budget.per])

    @property
    def resets_in_s(self) -> float:
        """Seconds to the next period."""
        length_s = PERIOD_S[self.budget.per]
        return length_s - self._wall() % length_s

    @property
    def is_short(self) -> bool:
        """Whether money is left, and was too little for the latest request."""
        return not self.is_spent and self.account.left < self._short_of

    def look(self) -> None:
        """Notices a new period, and tells when the money is gone or there again."""
        self.account.turn(self._period())
        if self.account.is_spent != self.is_spent:
            self.is_spent = self.account.is_spent
            self._changed(self)

    async def hold(self, request: Request) -> Hold:
        """Holds what the request may cost at most.

        Raises:
            OverBudget
        """
        self.look()
        prompt, choices = estimate(request.body), _choices(request)
        answer = (request.max_tokens or GUESSED_ANSWER_TOKENS) * choices
        if request.kind == "embedding":
            answer = 0
        cost = (prompt * self.price.prompt + answer * self.price.answer) / PER
        if not self.account.hold(cost):
            async with self._claiming:
                await self._claim(cost)
        self._short_of = 0.0
        self.look()
        return Hold(self, self.account.period, cost, prompt)

    async def _claim(self, cost: float) -> None:
        account = self.account
        if account.hold(cost):
            return
        for more in account.wants(cost):
            if await self._try(more) and account.hold(cost):
                return
        self._short_of = cost
        self.look()
        raise OverBudget(self.name)

    async def _try(self, more: float) -> bool:
        """Claims more, if the others leave so much."""
        account = self.account
        try:
            await self._tell(account.claimed + more)
            is_mine = account.claim(more, await self._others())
            if not is_mine:
                await self._tell(account.claimed)
        except StateStoreUnavailable:
            return account.claim_loosely(more)
        return is_mine

    async def _tell(self, claimed: float) -> None:
        record = ClaimRecord(claimed, self.account.spent)
        key = f"{self.account.period}.{self._me}"
        await self._store.put(self._group, key, record.to_bytes(), ttl_s=self.resets_in_s + KEPT_S)
        self._told = record

    async def _others(self) -> float:
        """What all others have claimed in this period, those too that have ended since."""
        prefix, total = f"{self.account.period}.", 0.0
        for key, raw in (await self._store.scan(self._group)).items():
            record = ClaimRecord.from_bytes(raw)
            if record is not None and key.startswith(prefix) and not key.endswith(self._me):
                total += record.claimed
        return total

    async def sync(self) -> None:
        """Tells what was spent, and sees what the others have claimed. Without the store, all stays as it is known."""
        async with self._claiming:
            self.look()
            account = self.account
            try:
                account.others = await self._others()
                if account.claimed and self._told != ClaimRecord(account.claimed, account.spent):
                    await self._tell(account.claimed)
            except StateStoreUnavailable:
                return
        self.look()

    async def close(self) -> None:
        """Gives back what was claimed and not spent."""
        async with self._claiming:
            if self.account.claimed:
                try:
                    await self._tell(self.account.spent + self.account.held)
                except StateStoreUnavailable:
                    return


def money_text(purse: Purse) -> str:
    """What an operator is told when the money is gone, or there again."""
    name, budget = purse.name, purse.budget
    if not purse.is_spent:
        return f"the budget of {name} has money again: {purse.account.left:g} of {budget.amount:g}"
    return f"the budget of {name}, {budget.amount:g} per {budget.per}, is spent; more in {lasting(purse.resets_in_s)}"


def _choices(request: Request) -> int:
    asked = [request.body.get(name) for name in ("n", "best_of")]
    return max([1, *(n for n in asked if isinstance(n, int))])
