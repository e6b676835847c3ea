"""The prefix index of several gateways and of a replica's supervisor, over a store in memory."""

import gc
import tracemalloc
from random import Random

import pytest

from gateway import prefix_sharing
from gateway.policy.prefix import BLOCK_BYTES, ENTRY_BYTES, PrefixIndex, prefix_chain, tokens_of
from gateway.prefix_sharing import PrefixSharing
from replicas.held_blocks import HeldBlocks
from replicas.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from state_store.memory import MemoryStateStore
from state_store.prefix_news import Held, Routed, from_bytes, to_bytes, token_chain, topic_of

PROMPT = b"".join(b"%0512d" % n for n in range(6))
CHAIN = prefix_chain(PROMPT)
IDS = list(range(6 * 128))


def gateway(store: MemoryStateStore) -> PrefixSharing:
    return PrefixSharing("m", store, PrefixIndex())


async def settle(*gateways: PrefixSharing) -> None:
    for one in gateways:
        await one.exchange()


async def tell(store: MemoryStateStore, held: HeldBlocks, replica: str = "a") -> None:
    for news in held.news(replica):
        await store.append(topic_of("m"), to_bytes(news), max_values=99)


def stored(ids: list[int], block_tokens: int = 32) -> BlockStored:
    names = [b"%d" % n for n in range(len(ids) // block_tokens)]
    return BlockStored(names, ids[: len(names) * block_tokens], block_tokens)


async def test_what_one_gateway_routed_the_others_know() -> None:
    store = MemoryStateStore()
    one, two = gateway(store), gateway(store)
    one.routed("a", CHAIN, IDS, len(PROMPT))
    await settle(one, two)
    assert two.index.depth("a", CHAIN) == 6
    assert two.index.holders(CHAIN) == ("a",)


async def test_blocks_that_an_engine_drops_leave_the_index_everywhere() -> None:
    store, held = MemoryStateStore(), HeldBlocks()
    one, two = gateway(store), gateway(store)
    held.take([stored(IDS)])
    await tell(store, held)
    one.routed("a", CHAIN, IDS, len(PROMPT))
    await settle(one, two)
    # The last two of six text blocks: tokens 512 to 767.
    held.take([BlockRemoved([b"%d" % n for n in range(16, 24)])])
    await tell(store, held)
    await settle(one, two)
    assert [g.index.depth("a", CHAIN) for g in (one, two)] == [4, 4]
    # Computed again, by a request that no gateway routed.
    held.take([BlockStored([b"x"], IDS[512:544], 32, b"15")])
    held.take([stored(IDS)])
    await tell(store, held)
    await settle(one, two)
    assert [g.index.depth("a", CHAIN) for g in (one, two)] == [6, 6]
    held.take([AllBlocksCleared()])
    await tell(store, held)
    await settle(one, two)
    assert [g.index.depth("a", CHAIN) for g in (one, two)] == [0, 0]


async def test_the_index_survives_all_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStateStore()
    monkeypatch.setattr(prefix_sharing, "CHUNK", 4)
    one, two = gateway(store), gateway(store)
    one.routed("a", CHAIN, IDS, len(PROMPT))
    two.routed("b", CHAIN[:3], IDS[:384], len(PROMPT) // 2)
    await settle(one, two, one)
    await one._copy()
    late = prefix_chain(b"z" * 2 * BLOCK_BYTES)
    two.routed("b", late, [], 2 * BLOCK_BYTES)
    await two.exchange()
    # What is only in the copy, and what is only in the news.
    for _ in range(prefix_sharing.MAX_BATCHES):
        await store.append(topic_of("m"), b"?", max_values=prefix_sharing.MAX_BATCHES - 1)
    two.routed("c", late, [], 2 * BLOCK_BYTES)
    await two.exchange()
    found = gateway(store)
    assert await found._restore()
    await found.exchange()
    assert [found.index.depth(r, CHAIN) for r in "ab"] == [6, 3]
    assert found.index.depth("c", late) == 2
    # Their tokens are known, too.
    found.index.removed("a", token_chain(IDS)[-16:])
    assert found.index.depth("a", CHAIN) == 4


async def test_one_gateway_at_a_time_leaves_a_copy_and_only_of_something_new() -> None:
    store = MemoryStateStore()
    one, two = gateway(store), gateway(store)
    await settle(one, two)
    await one._copy()
    assert await store.get("prefix_copy:m", "head") is None
    two.routed("a", CHAIN, IDS, len(PROMPT))
    await settle(two, one)
    await one._copy()
    head = await store.get("prefix_copy:m", "head")
    await two._copy()
    assert head is not None
    assert await store.get("prefix_copy:m", "head") == head
    assert len(await store.scan("prefix_copy:m")) == 3


def test_an_engine_s_blocks_of_any_size_have_the_same_hashes() -> None:
    found = []
    for block_tokens in (16, 32, 64, 128):
        held = HeldBlocks()
        held.take([stored(IDS, block_tokens)])
        [news] = held.news("a")
        assert len(held) == len(IDS) // block_tokens
        found.append(news.added)
    assert set(found) == {token_chain(IDS)}


def test_what_came_and_went_between_two_tellings_is_told_once() -> None:
    held = HeldBlocks()
    held.take([stored(IDS[:64])])
    assert [len(n.added) for n in held.news("a")] == [4]
    held.take([BlockRemoved([b"1"]), BlockStored([b"1"], IDS[32:64], 32, b"0"), BlockRemoved([b"0"])])
    [news] = held.news("a")
    assert news.removed == token_chain(IDS)[:2]
    assert news.added == token_chain(IDS)[2:4]
    assert held.news("a") == []


def test_blocks_of_adapters_and_orphans_are_left_out() -> None:
    held = HeldBlocks()
    held.take([BlockStored([b"a"], IDS[:32], 32, None, "lora"), BlockStored([b"b"], IDS[:32], 32, b"?")])
    held.take([BlockStored([b"c"], IDS[:10], 10)])
    assert len(held) == 0


NEWS = [
    Routed("me", "a:1", (1, 2**64 - 1), (3, 0)),
    Routed("me", "", (), ()),
    Held("a", (1, 2), (3,)),
    Held("a", is_anew=True),
]


@pytest.mark.parametrize("news", NEWS)
def test_news_come_as_they_were_told(news: Routed | Held) -> None:
    assert from_bytes(to_bytes(news)) == news


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[1]\n", b'["held","a",true,1]\nx', b'["other","a",1,0]\n', b"\xff"]
)
def test_what_is_no_news_is_none(raw: bytes) -> None:
    assert from_bytes(raw) is None


def test_text_blocks_end_in_the_token_block_that_is_whole_by_then() -> None:
    tokens = tuple(range(1, 11))
    assert tokens_of((1, 2, 3), tokens, 3 * BLOCK_BYTES) == (3, 6, 10)
    assert tokens_of((1, 2, 3), (7,), 3 * BLOCK_BYTES) == (0, 0, 7)
    assert tokens_of((1,), (), BLOCK_BYTES) == (0,)


def test_an_entry_costs_no_more_than_is_counted_for_it() -> None:
    rng, count = Random(1), 2000
    gc.collect()
    tracemalloc.start()
    index = PrefixIndex(budget_bytes=count * ENTRY_BYTES)
    for _ in range(2 * count):
        texts = tuple(rng.getrandbits(64) for _ in range(2))
        for replica in ("r1", "r2", "r3"):
            index.add(replica, texts)
        index.link(texts, (rng.getrandbits(64), rng.getrandbits(64)))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(index) == count
    assert size < index.budget_bytes
    assert len(index._tokens) <= count
    assert len(index._texts) <= count
