"""Session records: which turn a session is at, and which replica has its state in each tier.

A record has an epoch and a turn. Turns of one epoch only go up; whenever what was known of a session may be missing
(its record is gone, or the server that holds it is not the one that it was last written on), a new, higher epoch
begins. So two answers of one session either stand in order within one epoch, or the second one says that the first
may have been forgotten: nothing is lost silently. Epochs begin at the time in milliseconds, so that one which nobody
remembers is below all that follow.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from state_store.protocol import StateStore, StateStoreUnavailable
from state_store.script import Fields, Kept, Script

GROUP = "sessions"
_MEMORY = b"memory"
"""The dataset of a store that has no name for its own."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as one gateway knows it, or as the store does."""

    epoch: int = 0
    """0: the store has said nothing of it yet; turns are counted all the same."""
    turn: int = 0
    replicas: Mapping[str, str] = field(default_factory=dict)
    """By tier."""
    home: str = ""
    """The dataset that it was read from: another one may be older."""
    cause: str = ""
    """Why this epoch began with this reading: `new`, `lost` (the record was gone), `moved` (to another server)."""
    kept: Kept = "stored"
    """Where this reading's turn is."""


async def step(
    store: StateStore, model: str, session: str, known: SessionRecord, *, turns: int, ttl_s: float
) -> SessionRecord:
    """Merges what is known into the record and goes on by `turns`, 1 for the next one and 0 for none.

    Raises:
        StateStoreUnavailable
    """
    pairs = [word for pair in known.replicas.items() for word in pair]
    words = [str(turns), str(_now_ms()), str(known.epoch), str(known.turn), *pairs]
    ran = await store.run(_STEP, f"{GROUP}:{model}", session, words, ttl_s=ttl_s)
    try:
        epoch, turn, cause, home, *bound = (value.decode() for value in ran.values)
        replicas = dict(zip(bound[::2], bound[1::2], strict=True))
        return SessionRecord(int(epoch), int(turn), replicas, home, cause, ran.kept)
    except ValueError as error:
        raise StateStoreUnavailable(f"what it answers is no session: {error}") from error


async def bind(
    store: StateStore, model: str, session: str, at: SessionRecord, tier: str, replica: str, *, moves: bool,
    ttl_s: float,
) -> str:  # fmt: skip
    """Pins the session to a replica as of a turn; the replica to which it is pinned then.

    The first to bind a tier has it, and a move counts if no later turn has moved it: a writer that was stopped for a
    while changes nothing that was written meanwhile. Empty when the store knows less than this turn.

    Raises:
        StateStoreUnavailable
    """
    words = [str(at.epoch), str(at.turn), tier, replica, "1" if moves else "0"]
    ran = await store.run(_BIND, f"{GROUP}:{model}", session, words, ttl_s=ttl_s)
    return ran.values[0].decode()


def _now_ms() -> int:
    return int(time.time() * 1000)


_STEP_LUA = """
local home = string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)') or ''
local found = redis.call('HMGET', KEYS[1], 'e', 't', 'h')
local e, t = tonumber(found[1] or '0'), tonumber(found[2] or '0')
local fresh, ke, kt = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
fresh = math.max(fresh, time[1] * 1000 + math.floor(time[2] / 1000))
local cause = ''
if e == 0 and ke == 0 then
  cause = 'new'
  e = fresh
elseif e == 0 then
  cause = 'lost'
  e = math.max(ke + 1, fresh)
elseif found[3] ~= home then
  cause = 'moved'
  e = math.max(e + 1, ke + 1, fresh)
else
  e = math.max(e, ke)
end
t = math.max(t, kt) + tonumber(ARGV[1])
redis.call('HSET', KEYS[1], 'e', string.format('%.0f', e), 't', string.format('%.0f', t), 'h', home)
for i = 5, #ARGV, 2 do
  redis.call('HSETNX', KEYS[1], 'b:' .. ARGV[i], ARGV[i + 1])
end
local answer = {string.format('%.0f', e), string.format('%.0f', t), cause, home}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 2) == 'b:' then
    table.insert(answer, string.sub(all[i], 3))
    table.insert(answer, all[i + 1])
  end
end
return answer
"""


def _step(fields: Fields, words: Sequence[bytes]) -> list[bytes]:
    turns, fresh, known_epoch, known_turn = (int(word) for word in words[:4])
    epoch, turn = int(fields.get(b"e", b"0")), int(fields.get(b"t", b"0"))
    cause = b""
    if epoch == 0 and known_epoch == 0:
        cause, epoch = b"new", fresh
    elif epoch == 0:
        cause, epoch = b"lost", max(known_epoch + 1, fresh)
    epoch = max(epoch, known_epoch)
    turn = max(turn, known_turn) + turns
    fields.update({b"e": b"%d" % epoch, b"t": b"%d" % turn})
    for tier, replica in zip(words[4::2], words[5::2], strict=True):
        fields.setdefault(b"b:" + tier, replica)
    bound = [word for name, value in fields.items() if name[:2] == b"b:" for word in (name[2:], value)]
    return [b"%d" % epoch, b"%d" % turn, cause, _MEMORY, *bound]


_BIND_LUA = """
local found = redis.call('HMGET', KEYS[1], 'e', 'b:' .. ARGV[3], 'v:' .. ARGV[3], 't')
local e, bound, v, t = tonumber(found[1] or '0'), found[2], tonumber(found[3] or '0'), tonumber(found[4] or '0')
local mine = tonumber(ARGV[2])
if e < tonumber(ARGV[1]) or (e == tonumber(ARGV[1]) and t < mine) then return {''} end
if bound and (ARGV[5] == '0' or e > tonumber(ARGV[1]) or v > mine) then return {bound} end
redis.call('HSET', KEYS[1], 'b:' .. ARGV[3], ARGV[4], 'v:' .. ARGV[3], ARGV[2])
return {ARGV[4]}
"""


def _bind(fields: Fields, words: Sequence[bytes]) -> list[bytes]:
    my_epoch, my_turn, moves = int(words[0]), int(words[1]), words[4] == b"1"
    tier, replica = words[2], words[3]
    epoch, turn = int(fields.get(b"e", b"0")), int(fields.get(b"t", b"0"))
    bound, version = fields.get(b"b:" + tier), int(fields.get(b"v:" + tier, b"0"))
    if (epoch, turn) < (my_epoch, my_turn):
        return [b""]
    if bound is not None and (not moves or epoch > my_epoch or version > my_turn):
        return [bound]
    fields.update({b"b:" + tier: replica, b"v:" + tier: b"%d" % my_turn})
    return [replica]


_STEP = Script("session step", _STEP_LUA, _step)
_BIND = Script("session bind", _BIND_LUA, _bind)
