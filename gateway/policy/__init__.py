"""Pure policy: what to do, never doing it. Time, randomness and configuration come in as arguments."""
