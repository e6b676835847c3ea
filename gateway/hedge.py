"""A race of two prefills: the first token wins, and the loser is aborted at its replica before it generates more."""

from gateway.dispatch import Exchange
from gateway.failure import ExchangeFailed, Failure

LOST: Failure = "lost_race"


class Race:
    """Exchanges that prefill the same request. One of them may speak to the client."""

    def __init__(self) -> None:
        self._runners: list[Exchange] = []
        self.winner: Exchange | None = None

    def enter(self, exchange: Exchange) -> None:
        self._runners.append(exchange)

    def win(self, exchange: Exchange) -> None:
        """This one has its first token, or the replica's verdict on the request.

        Raises:
            ExchangeFailed: another one was faster.
        """
        if self.winner is None:
            self.winner = exchange
            for other in self._runners:
                if other is not exchange:
                    other.stream.connection.fail(ExchangeFailed(LOST))
        elif self.winner is not exchange:
            raise ExchangeFailed(LOST)
