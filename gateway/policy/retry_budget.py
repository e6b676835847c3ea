"""A budget for attempts beyond the first (Finagle's and tower's retry budget): a share of traffic, with a floor for quiet times."""


class RetryBudget:
    """A bucket that every request fills a little and every further attempt empties by one.

    share: attempts earned per request; floor_per_s: attempts earned per second without traffic; burst: what the bucket
    holds at most, enough for all streams of one replica to move at once.
    """

    def __init__(self, share: float, floor_per_s: float, burst: float = 32.0) -> None:
        self._share, self._floor_per_s, self._burst = share, floor_per_s, burst
        self._balance, self._as_of = burst, 0.0

    def retune(self, share: float, floor_per_s: float) -> None:
        """Earns at another rate from now on; what has been earned stays."""
        self._share, self._floor_per_s = share, floor_per_s

    def earn(self, now: float) -> None:
        """A request arrived."""
        self._balance = min(self._burst, self.balance(now) + self._share)

    def spend(self, now: float) -> bool:
        """Takes one attempt; False when there is none left."""
        balance = self.balance(now)
        if balance < 1.0:
            return False
        self._balance = balance - 1.0
        return True

    def balance(self, now: float) -> float:
        """Attempts that may be made now."""
        if self._as_of:
            self._balance = min(self._burst, self._balance + self._floor_per_s * (now - self._as_of))
        self._as_of = now
        return self._balance
