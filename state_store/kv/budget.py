"""How much room blocks take in Redis, counted in Redis, and which go first: one script, one sorted set, one number.

Redis's own eviction does not know a block from a session, so blocks keep to a budget of their own. The sorted set holds
every block that was written, by when it was last of use; the number is their sizes' sum. A block of which a second
request made use counts as used later than it was: system prompts outlast what only one conversation ever said.
"""

from dataclasses import dataclass

USED = b"graceway:{kv}:used"
BYTES = b"graceway:{kv}:bytes"
HOT_BONUS_S = 900.0
"""How much later a block counts as used once it was used again."""
_DEEPER_S = 1e-3
"""How much earlier each block counts than the one before it: without its beginning, the rest of a prefix is of no use."""

# KEYS: used, bytes. ARGV: now, ttl_s, budget_bytes, hot_bonus_s, then member, size in bytes, depth for each block.
# Returns the members that went, which the caller deletes.
SCRIPT = (
    b"""
local now, ttl, budget, hot = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local bytes = tonumber(redis.call('GET', KEYS[2]) or '-1')
if bytes < 0 then
  bytes = 0
  for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    bytes = bytes + tonumber(string.match(member, '%d+$'))
  end
end
for i = 5, #ARGV, 3 do
  local member = ARGV[i] .. ' ' .. ARGV[i + 1]
  local score = now - tonumber(ARGV[i + 2]) * """
    + str(_DEEPER_S).encode()
    + b"""
  if redis.call('ZADD', KEYS[1], 'NX', score, member) == 1 then
    bytes = bytes + tonumber(ARGV[i + 1])
  else
    redis.call('ZADD', KEYS[1], 'XX', 'GT', score + hot, member)
  end
end
local gone = {}
local function forget(members)
  for _, member in ipairs(members) do
    local key, size = string.match(member, '^(.*) (%d+)$')
    redis.call('ZREM', KEYS[1], member)
    bytes = bytes - tonumber(size)
    gone[#gone + 1] = key
  end
end
forget(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - ttl))
while bytes > budget do
  local first = redis.call('ZRANGE', KEYS[1], 0, 0)
  if #first == 0 then break end
  forget(first)
end
redis.call('SET', KEYS[2], bytes, 'EX', math.ceil(ttl + hot))
redis.call('EXPIRE', KEYS[1], math.ceil(ttl + hot))
return gone
"""
)


@dataclass(frozen=True, slots=True)
class Budget:
    """What blocks may take altogether, and how long one that nobody uses stays."""

    size_bytes: int
    ttl_s: float
    hot_bonus_s: float = HOT_BONUS_S

    @property
    def expiry_s(self) -> int:
        """For Redis, should nobody count any more: never before the script lets go of it."""
        return int(self.ttl_s + self.hot_bonus_s) + 1


@dataclass(frozen=True, slots=True)
class Use:
    """A block that was just written or found of use."""

    key: bytes
    size_bytes: int
    depth: int
    """How many blocks come before it in its prefix."""


def command(uses: list[Use], budget: Budget, now: float) -> list[bytes]:
    """What counts `uses` at Unix time `now`; the reply is the keys to delete."""
    limits = (f"{now:.3f}", f"{budget.ttl_s:.3f}", str(budget.size_bytes), f"{budget.hot_bonus_s:.3f}")
    arguments = [b"EVAL", SCRIPT, b"2", USED, BYTES, *(limit.encode() for limit in limits)]
    for use in uses:
        arguments += [use.key, str(use.size_bytes).encode(), str(use.depth).encode()]
    return arguments
