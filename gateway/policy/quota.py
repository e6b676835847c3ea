"""A tenant's quota: requests and tokens per minute as two buckets that refill steadily, each drawn from by several gateways.

The bucket itself is in the state store, where each gateway claims a part of it that it may use until it tells how much it did.
The claims of all are never more than the bucket has, so what they admit together stays within it, but for a request or two
each when it was full;
and no request waits for the store. Without the store a gateway goes on with its claim and its part of the refill.
"""

MIN_WAIT_S = 0.1
"""Until an exchange may have brought more, where the bucket has enough and this gateway's claim has not."""
NEARLY_FULL = 0.9


class Bucket:
    """One gateway's view of one bucket. Times are monotonic seconds, amounts requests or tokens."""

    def __init__(self, per_minute: float, sharers: int = 1) -> None:
        self.size, self.per_s = per_minute, per_minute / 60.0
        self.sharers = sharers
        """Gateways that use it, this one included."""
        self.level = per_minute
        """What was left of it when the store last told, and has come since."""
        self.used = 0.0
        """Since the store was last told. Less than nothing when more was given back."""
        self.wanted = 0.0
        """The most that was refused since then though the bucket may have it: what the next claim should be."""
        self._claim = per_minute / sharers
        self._as_of = 0.0

    def wait_s(self, amount: float, now: float) -> float:
        """How long until so much may be used; an amount larger than the bucket waits for a full one."""
        self.refill(now)
        amount = min(amount, self.size)
        if self._claim - self.used >= amount:
            return 0.0
        if self.used <= 0.0 and self.level >= max(amount, NEARLY_FULL * self.size):
            # Nobody has used it lately: a small quota need not wait for an exchange.
            return 0.0
        missing = amount - (self.level - self.used)
        if missing <= 0.0:
            self.wanted = max(self.wanted, amount)
        return max(MIN_WAIT_S, missing / self.per_s)

    def take(self, amount: float) -> None:
        self.used += amount

    def refill(self, now: float) -> None:
        """Lets come what has come since: of the claim, this gateway's part."""
        if self._as_of:
            come = self.per_s * (now - self._as_of)
            self.level = min(self.size, self.level + come)
            self._refill_claim(come / self.sharers)
        self._as_of = now

    def _refill_claim(self, come: float) -> None:
        room = max(0.0, self.size / self.sharers - self._claim)
        self._claim += min(room, come)
        if come > room and self.used > 0.0:
            # A full bucket would have run over: the rest makes up for what was used.
            self.used = max(0.0, self.used - (come - room))

    def told(self, used: float, level: float, claim: float, sharers: int, now: float) -> None:
        """The store knows of `used` now, and says what is left, how much of that is this gateway's, and how many there are."""
        self.used -= used
        self.wanted = 0.0
        self.level, self._claim, self.sharers, self._as_of = level, claim, sharers, now


class Quota:
    """Both buckets. A limit of None is none."""

    def __init__(
        self, requests_per_minute: int | None, tokens_per_minute: int | None, sharers: int = 1
    ) -> None:
        self.limits = (requests_per_minute, tokens_per_minute)
        self._requests = Bucket(requests_per_minute, sharers) if requests_per_minute else None
        self._tokens = Bucket(tokens_per_minute, sharers) if tokens_per_minute else None

    @property
    def buckets(self) -> dict[str, Bucket]:
        """Those that are limited, by what they hold."""
        both = {"requests": self._requests, "tokens": self._tokens}
        return {name: bucket for name, bucket in both.items() if bucket is not None}

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

    def settle(self, estimated: int, used: int) -> None:
        """Gives back what was reserved and not used, or takes what was used beyond it."""
        if self._tokens is not None:
            self._tokens.take(used - estimated)
