"""Who calls: API keys, what each may ask for, and how much. Without keys configured anybody may, for anything."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from hmac import compare_digest

from gateway.errors import Forbidden, Unauthorized
from gateway.policy.decision import Shed
from gateway.policy.facts import RANK
from gateway.policy.quota import Bucket, Quota
from gateway.request import Request
from gateway.specs import KeySpec

TOKEN_BYTES = 4
"""Of text, for the estimate that is reserved before a prompt has been counted."""
GUESSED_ANSWER_TOKENS = 256
"""Reserved for an answer whose length nobody bounded."""


class Callers:
    """The configured keys. They stand in the config by their SHA-256 alone, and are compared in constant time.

    Args:
        sharers: gateways that quotas are taken to be shared with, this one included, until the store says how many.
    """

    def __init__(self, keys: Sequence[KeySpec], before: "Callers | None" = None, sharers: int = 1) -> None:
        self._keys = {key.sha256: key for key in keys}
        known = before._quotas if before is not None else {}
        self._quotas: dict[str, Quota] = {}
        for key in keys:
            limits = (key.requests_per_minute, key.tokens_per_minute)
            old = known.get(key.tenant_name)
            # What a tenant has used counts on through a reload.
            self._quotas[key.tenant_name] = (
                old if old is not None and old.limits == limits else Quota(*limits, sharers)
            )
        self._at_once = {key.tenant_name: key.max_at_once for key in keys if key.max_at_once is not None}
        self._running: Counter[str] = before._running if before is not None else Counter()

    @property
    def are_needed(self) -> bool:
        return bool(self._keys)

    def key_of(self, credential: str) -> KeySpec | None:
        """The key that a caller bears, or None."""
        digest = sha256(credential.encode()).hexdigest()
        found = self._keys.get(digest)
        return found if found is not None and compare_digest(found.sha256, digest) else None

    def admit(self, request: Request) -> Request:
        """The request within what its caller may ask for: a lower priority, a higher lowest tier.

        Raises:
            Unauthorized: no key, or an unknown one.
            Forbidden: the key is not for this model.
        """
        if not self._keys:
            return request
        key = self.key_of(request.credential)
        if key is None:
            raise Unauthorized
        if key.models is not None and request.model not in key.models:
            raise Forbidden(f"this key is not for the model `{request.model}`", param="model")
        priority = max(request.priority, key.highest_priority, key=RANK.__getitem__)
        return replace(
            request,
            tenant=key.tenant_name,
            weight=key.weight,
            priority=priority,
            lowest_tier=key.lowest_tier or "",
        )

    def reserve(self, request: Request, now: float) -> Shed | None:
        """Counts the request as running until `end`, and takes it out of its tenant's quota, by estimate.

        A refusal when its tenant has too many under way, or not enough left.
        """
        tenant = request.tenant
        most = self._at_once.get(tenant)
        if most is not None and self._running[tenant] >= most:
            return Shed("rate_limited", 1.0, f"`{tenant}` has as many requests under way as it may: {most}")
        quota = self._quotas.get(tenant)
        wait_s = quota.reserve(_estimate(request), now) if quota is not None else None
        if wait_s is not None:
            return Shed("rate_limited", wait_s, f"the quota of `{tenant}` is spent")
        self._running[tenant] += 1
        return None

    def end(self, request: Request) -> None:
        """The request is over, however it ended."""
        self._running[request.tenant] -= 1
        if not self._running[request.tenant]:
            del self._running[request.tenant]

    def settle(self, request: Request, used_tokens: int) -> None:
        """Corrects the estimate by what was used."""
        quota = self._quotas.get(request.tenant)
        if quota is not None:
            quota.settle(_estimate(request), used_tokens)

    def buckets(self) -> Iterator[tuple[str, Bucket]]:
        """All that is limited, by names that all gateways have for it."""
        for tenant, quota in self._quotas.items():
            for what, bucket in quota.buckets.items():
                yield f"{what}:{tenant}", bucket


def _estimate(request: Request) -> int:
    return request.size_bytes // TOKEN_BYTES + (request.max_tokens or GUESSED_ANSWER_TOKENS)
