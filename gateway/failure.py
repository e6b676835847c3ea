"""How an exchange with a replica fails.

A module of its own because what is interpreted derives from it, and a compiled class takes no such heirs (see `compiled`).
"""

from typing import Literal, Self, cast

Failure = Literal[
    "refused", "unreachable", "reset", "cut", "malformed", "error_event", "no_tokens", "first_token_timeout", "gap", "hung",
    "slow", "replica_down", "backpressure", "context", "budget", "token_ids_refused", "lost_race", "deadline", "late", "miss",
]  # fmt: skip
"""Short words for headers, metrics and logs, and `http_` with a status; `gateway/reason_words.py` says them to people."""


class ExchangeFailed(Exception):  # noqa: N818 - the name of what happened
    """The exchange broke, and how."""

    def __init__(self, failure: Failure, detail: str = "") -> None:
        super().__init__(f"{failure}: {detail}" if detail else failure)
        self.failure = failure

    @classmethod
    def of_status(cls, status: int, detail: str = "") -> Self:
        """The replica answered, and not with an answer."""
        return cls(cast("Failure", f"http_{status}"), detail)
