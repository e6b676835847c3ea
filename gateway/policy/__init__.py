"""Pure policy: what to do, never doing it. Time, randomness and configuration come in as arguments."""

from gateway.compiled import folders

__path__[:0] = folders("gateway/policy")
