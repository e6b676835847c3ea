"""One turn of a session: where its state is, and what the answer says of the turn's record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from state_store.session_turns import SessionRecord

Durability = Literal["local", "stored", "replicated", "unconfirmed"]


@dataclass(slots=True, eq=False)
class Turn:
    """A request of a session; empty for one that belongs to none."""

    session: str = ""
    replicas: Mapping[str, str] = field(default_factory=dict)
    """The session's replica by tier, as of the turn's begin."""
    epoch: int = 0
    """0: this gateway knows of no turn before those that it had without the store."""
    number: int = 0
    durability: Durability = "local"
    """`local`: only this gateway knows of the turn, or nobody else is known to; otherwise where the store has it."""

    def take(self, record: SessionRecord) -> None:
        """The store has the turn, or one of its servers."""
        self.epoch, self.number = record.epoch, record.turn
        self.durability = record.kept

    def told(self) -> list[tuple[str, str]]:
        """Headers, as of now: once an answer has begun, what it said of its turn stands."""
        if not self.session:
            return []
        return [
            ("x-session-epoch", f"{self.epoch}"),
            ("x-session-turn", f"{self.number}"),
            ("x-session-durability", self.durability),
        ]


NO_TURN = Turn()
