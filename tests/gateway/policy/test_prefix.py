"""The prefix chain and its index."""

from gateway.policy.prefix import BLOCK_BYTES, ENTRY_BYTES, MAX_BLOCKS, PrefixIndex, prefix_chain

SYSTEM = b"s" * (2 * BLOCK_BYTES)


def test_two_prompts_share_the_hashes_of_what_they_share() -> None:
    one, other = prefix_chain(SYSTEM + b"a" * BLOCK_BYTES), prefix_chain(SYSTEM + b"b" * BLOCK_BYTES)
    assert one[:2] == other[:2]
    assert one[2] != other[2]


def test_a_hash_stands_for_all_that_comes_before_it() -> None:
    same_second_block = prefix_chain(b"x" * BLOCK_BYTES + b"s" * BLOCK_BYTES)
    assert same_second_block[1] != prefix_chain(SYSTEM)[1]


def test_only_whole_blocks_count_and_not_without_end() -> None:
    assert prefix_chain(b"s" * (BLOCK_BYTES - 1)) == ()
    assert len(prefix_chain(b"s" * (BLOCK_BYTES * (MAX_BLOCKS + 5)))) == MAX_BLOCKS


def test_depth_is_the_longest_prefix_that_a_replica_has_seen() -> None:
    index, chain = PrefixIndex(), prefix_chain(SYSTEM + b"a" * 3 * BLOCK_BYTES)
    index.add("r1", chain[:2])
    index.add("r2", chain)
    assert [index.depth(r, chain) for r in ("r1", "r2", "r3")] == [2, 5, 0]
    assert index.holders(chain) == ("r2",)
    assert set(index.holders(chain[:2])) == {"r1", "r2"}


def test_a_restarted_replica_has_seen_nothing() -> None:
    index, chain = PrefixIndex(), prefix_chain(SYSTEM)
    index.add("r1", chain)
    index.forget("r1")
    assert index.depth("r1", chain) == 0


def test_the_index_is_bounded_and_drops_what_was_not_used_lately() -> None:
    index = PrefixIndex(budget_bytes=2 * ENTRY_BYTES)
    index.add("r1", (1, 2))
    index.add("r1", (1,))
    index.add("r1", (3,))
    assert len(index) == 2
    assert index.depth("r1", (1,)) == 1
    assert index.depth("r1", (2,)) == 0
