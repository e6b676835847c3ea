"""Reasons as people say them: the one table by which the terminal, the page and the events speak.

Headers, metrics and logs keep the short words, which programs compare.
"""

from collections.abc import Mapping

REASONS: Mapping[str, str] = {
    # what an attempt failed of
    "refused": "connection refused",
    "unreachable": "not reachable",
    "reset": "connection reset",
    "cut": "connection cut",
    "malformed": "malformed answer",
    "error_event": "error inside the answer",
    "no_tokens": "answer without a token",
    "first_token_timeout": "first token too late",
    "gap": "silence between tokens",
    "hung": "no progress",
    "slow": "slower than its peers",
    "replica_down": "replica went down",
    "backpressure": "replica full",
    "context": "prompt longer than the window",
    "budget": "out of money",
    "token_ids_refused": "token ids not offered",
    "lost_race": "another replica was faster",
    "late": "first token late",
    "miss": "no kept answer",
    # what a request was refused or moved for
    "queue_full": "queue full",
    "deadline": "deadline out of reach",
    "rate_limited": "rate limit reached",
    "priority": "places kept for higher priorities",
    "no_replica": "no replica could serve",
    "no_tier": "no tier could answer",
    "resumed": "gone on after a break",
    # what the ladder holds traffic back for
    "pinned": "pinned by an operator",
    "override": "share set by an operator",
    "pressure_ttft": "first tokens late",
    "pressure_errors": "attempts failed",
    "pressure_queue": "long waits",
    "pressure_kv": "KV cache nearly full",
    "pressure_lost": "replicas lost",
    "pressure_dependencies": "context features missing",
    # how broken streams ended
    "given_up": "given up",
}


def in_words(reason: str) -> str:
    """A reason's short word as people say it; what is said in words already stays."""
    if reason.startswith("http_"):
        return f"answered {reason.removeprefix('http_')}"
    return REASONS.get(reason, reason)
