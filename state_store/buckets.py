"""Buckets that refill steadily and are drawn from by many processes, which claim a part each: what they then use of it, they
tell afterwards. The claims of all are never more than what is in the bucket."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from state_store.protocol import StateStore
from state_store.script import Fields, Script

KEPT_S = 600.0
"""Longer than any bucket takes to fill: one that is forgotten by then is full."""
CLAIM_S = 5.0
"""How long a claim stands that is not renewed: who made it may be dead."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What one process has to tell of a bucket of `size` that refills by `per_s` a second, and may owe."""

    used: float
    """Since it last told. Less than nothing gives back."""
    wanted: float
    """The claim should be so much, if there is as much that nobody claims."""
    size: float
    per_s: float
    otherwise: float
    """What is in it if the store does not know it (any more)."""
    sharers: int
    """As many as it knows of, itself included: for a store that does not know."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What is left, and how much of it this process may use until it tells again."""

    level: float
    claim: float
    sharers: int


# The server's clock is the one that all of them share. Half of what nobody claims stays for who comes next.
_LUA = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local me, used, wanted = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local size, per_s = tonumber(ARGV[4]), tonumber(ARGV[5])
local level, claimed, sharers = tonumber(ARGV[6]), 0, 1
local known = redis.call('HGETALL', KEYS[1])
if #known == 0 then sharers = tonumber(ARGV[7]) end
for i = 1, #known, 2 do
  local value, as_of = known[i + 1]:match('(%S+) (%S+)')
  local age_s = math.max(0, now - tonumber(as_of))
  if known[i] == 'level' then
    level = math.min(size, tonumber(value) + per_s * age_s)
  elseif age_s > tonumber(ARGV[8]) then
    redis.call('HDEL', KEYS[1], known[i])
  elseif known[i] ~= me then
    claimed, sharers = claimed + tonumber(value), sharers + 1
  end
end
level = level - used
local free = math.max(0, level - claimed)
local claim = free / sharers
if #known > 0 and sharers > 1 then claim = math.max(free / 2, math.min(free, wanted)) end
redis.call('HSET', KEYS[1], 'level', string.format('%.6f %.6f', level, now))
redis.call('HSET', KEYS[1], me, string.format('%.6f %.6f', claim, now))
return {string.format('%.6f', level), string.format('%.6f', claim), tostring(sharers)}
"""


def _drawn(fields: Fields, words: Sequence[bytes]) -> list[bytes]:
    now, me, is_known = monotonic(), words[0], bool(fields)
    used, wanted, size, per_s, level, sharers, claim_s = map(float, words[1:])
    claimed, sharers = 0.0, 1.0 if is_known else sharers
    for name, entry in list(fields.items()):
        value, as_of = map(float, entry.split())
        if name == b"level":
            level = min(size, value + per_s * (now - as_of))
        elif now - as_of > claim_s:
            del fields[name]
        elif name != me:
            claimed, sharers = claimed + value, sharers + 1
    level -= used
    free = max(0.0, level - claimed)
    claim = max(free / 2.0, min(free, wanted)) if is_known and sharers > 1 else free / sharers
    fields[b"level"], fields[me] = b"%.6f %.6f" % (level, now), b"%.6f %.6f" % (claim, now)
    return [b"%.6f" % level, b"%.6f" % claim, b"%d" % sharers]


DRAW = Script("draw", _LUA, _drawn)


async def draw(store: StateStore, group: str, bucket: str, me: str, one: Draw) -> Drawn:
    """Tells what was used of a bucket, and claims a part of it anew, in one step.

    Args:
        me: the name of the process, unlike any other.

    Raises:
        StateStoreUnavailable
    """
    numbers = one.used, one.wanted, one.size, one.per_s, one.otherwise, one.sharers, CLAIM_S
    words = [f"process:{me}", *(f"{number:.9f}" for number in numbers)]
    ran = await store.run(DRAW, group, bucket, words, ttl_s=KEPT_S)
    level, claim, sharers = map(float, ran.values)
    return Drawn(level, claim, int(sharers))
