"""KV blocks in Redis: how they look as bytes, and how they get there and back fast."""
