"""How much room blocks take in Redis, counted in Redis, and which go first: one script, a sorted set and a number each pool.

Redis's own eviction does not know a block from a session, so blocks keep to a budget of their own. The sorted set holds
every block that was written, by when it was last of use; the number is their sizes' sum. A block of which a second
request made use counts as used later than it was: system prompts outlast what only one conversation ever said.
Each pool keeps to its own budget and time: what one tier keeps for a minute says nothing of what another one keeps for a day.
"""

from dataclasses import dataclass

HOT_BONUS_S = 900.0
"""How much later a block counts as used once it was used again."""
_MOST_GONE = 2048
"""Blocks that one call lets go of: where far too many are there, Redis stands still for nobody."""
_DEEPER_S = 1e-3
"""How much earlier each block counts than the one before it: without its beginning, the rest of a prefix is of no use."""

# KEYS: used, bytes. ARGV: now, ttl_s, budget_bytes, hot_bonus_s, then member, size in bytes, depth for each block.
# Returns the members that went, which the caller deletes.
SCRIPT = (
    b"""
local now, ttl, budget, hot = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local most = """
    + str(_MOST_GONE).encode()
    + b"""
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
forget(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - ttl, 'LIMIT', 0, most))
while bytes > budget and #gone < most do
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
    pool: str = ""
    """What it is the budget of: all blocks of the same pool."""
    hot_bonus_s: float = HOT_BONUS_S

    @property
    def used(self) -> bytes:
        """The key of the sorted set."""
        return b"graceway:{kv}:used%s" % self._suffix

    @property
    def counted(self) -> bytes:
        """The key of the number."""
        return b"graceway:{kv}:bytes%s" % self._suffix

    def expiry_s(self, *, is_new: bool) -> int:
        """For Redis, should nobody count any more: never before the script lets go of it."""
        return int(self.ttl_s + (0.0 if is_new else self.hot_bonus_s)) + 1

    @property
    def _suffix(self) -> bytes:
        return b":" + self.pool.encode() if self.pool else b""


@dataclass(frozen=True, slots=True)
class Use:
    """A block that was just written or found of use."""

    key: bytes
    size_bytes: int
    depth: int
    """How many blocks come before it in its prefix."""
    is_new: bool = False
    """It was written, and nobody has used it yet."""


def command(uses: list[Use], budget: Budget, now: float) -> list[bytes]:
    """What counts `uses` at Unix time `now`; the reply is the keys to delete."""
    limits = (f"{now:.3f}", f"{budget.ttl_s:.3f}", str(budget.size_bytes), f"{budget.hot_bonus_s:.3f}")
    arguments = [b"EVAL", SCRIPT, b"2", budget.used, budget.counted, *(limit.encode() for limit in limits)]
    for use in uses:
        arguments += [use.key, str(use.size_bytes).encode(), str(use.depth).encode()]
    return arguments
