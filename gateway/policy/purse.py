"""Money for one period that several gateways spend from, each out of what it has claimed. Pure.

A gateway claims a part of the amount before it spends it, and holds what a request may cost until that is known. Claims
only add up: together they never exceed the amount, so neither does what is spent, however many gateways there are.
"""

from dataclasses import dataclass

CHUNK_SHARE = 0.02
"""Of the amount, that is claimed at once, so that most requests need no store; lost when a gateway dies."""
SPENT_SHARE = 0.001
"""With less than this share of the amount left, it is spent."""


@dataclass(slots=True)
class Account:
    """One gateway's account of one period. All figures are in the currency of the amount.

    Args:
        amount: of all gateways together, for the period.
        loose: what may be claimed while nobody can say what the others have.
    """

    amount: float
    loose: float
    period: int = 0
    claimed: float = 0.0
    spent: float = 0.0
    held: float = 0.0
    others: float = 0.0
    """What the other gateways have claimed, as last seen."""
    claimed_loosely: float = 0.0

    @property
    def free(self) -> float:
        """Claimed, and neither spent nor held."""
        return self.claimed - self.spent - self.held

    @property
    def left(self) -> float:
        """What this gateway may spend yet, claimed or not."""
        return max(0.0, self.amount - self.others - self.spent - self.held)

    @property
    def is_spent(self) -> bool:
        return self.left < SPENT_SHARE * self.amount

    def turn(self, period: int) -> None:
        """Begins a new period with the whole amount, if it is one. What is held is settled with nobody's money."""
        if period != self.period:
            self.period = period
            self.claimed = self.spent = self.held = self.others = self.claimed_loosely = 0.0

    def hold(self, cost: float) -> bool:
        """Holds what a request may cost; False when more has to be claimed first."""
        # Sums of what was claimed and settled are off by a little.
        if cost > self.free + 1e-9 * self.amount:
            return False
        self.held += cost
        return True

    def wants(self, cost: float) -> tuple[float, ...]:
        """The claims that would do, the larger one first: a chunk for requests to come, or just this one's need."""
        need = cost - self.free
        return tuple(dict.fromkeys((max(need, CHUNK_SHARE * self.amount), need)))

    def claim(self, more: float, others: float) -> bool:
        """Claims more, `others` being all claims of the others; False when together that is too much."""
        self.others = others
        if self.claimed + more + others > self.amount * (1 + 1e-9):
            return False
        self.claimed += more
        return True

    def claim_loosely(self, more: float) -> bool:
        """Claims more while the others' claims can't be known."""
        if self.claimed_loosely + more > self.loose or self.claimed + more + self.others > self.amount:
            return False
        self.claimed_loosely += more
        self.claimed += more
        return True

    def settle(self, period: int, held: float, cost: float) -> None:
        """Pays what a request cost in truth, out of what was held for it."""
        if period == self.period:
            self.held = max(0.0, self.held - held)
            self.spent += cost
            # More than it held is claimed by the fact.
            self.claimed = max(self.claimed, self.spent + self.held)
