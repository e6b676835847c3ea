"""vLLM's KV blocks kept in Redis, so that what one replica computed another one need not compute again."""
