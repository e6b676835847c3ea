"""How many replicas a tier runs, which of them goes first, and a simulator that judges it."""
