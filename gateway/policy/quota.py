"""A tenant's quota: requests and tokens per minute as two buckets that refill steadily."""


class _Bucket:
    def __init__(self, per_minute: float) -> None:
        self._per_s, self._size = per_minute / 60.0, per_minute
        self._level, self._as_of = per_minute, 0.0

    def level(self, now: float) -> float:
        if self._as_of:
            self._level = min(self._size, self._level + self._per_s * (now - self._as_of))
        self._as_of = now
        return self._level

    def wait_s(self, amount: float, now: float) -> float:
        """How long until so much is there; an amount larger than the bucket waits for a full one."""
        return max(0.0, (min(amount, self._size) - self.level(now)) / self._per_s)

    def take(self, amount: float) -> None:
        self._level -= amount


class Quota:
    """Both buckets. Times are monotonic seconds; a limit of None is none."""

    def __init__(self, requests_per_minute: int | None, tokens_per_minute: int | None) -> None:
        self.limits = (requests_per_minute, tokens_per_minute)
        self._requests = _Bucket(requests_per_minute) if requests_per_minute else None
        self._tokens = _Bucket(tokens_per_minute) if tokens_per_minute else None

    def reserve(self, tokens: int, now: float) -> float | None:
        """Takes one request and its estimated tokens; how long to wait when there is not enough, then nothing is taken."""
        wait_s = 0.0
        if self._requests is not None:
            wait_s = self._requests.wait_s(1.0, now)
        if self._tokens is not None:
            wait_s = max(wait_s, self._tokens.wait_s(tokens, now))
        if wait_s > 0:
            return wait_s
        if self._requests is not None:
            self._requests.take(1.0)
        if self._tokens is not None:
            self._tokens.take(tokens)
        return None

    def settle(self, estimated: int, used: int, now: float) -> None:
        """Gives back what was reserved and not used, or takes what was used beyond it."""
        if self._tokens is not None:
            self._tokens.level(now)
            self._tokens.take(used - estimated)
