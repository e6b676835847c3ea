"""Blocks on Redis as it is run: under TLS, behind Sentinels that name another master, read-only, copied, and in a Cluster."""

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from loadtests.cut_proxy import proxy_to
from loadtests.processes import RedisProcess
from loadtests.redis_groups import Cluster, running_sentinels
from state_store.kv.block_format import HEAD_BYTES, BlockId, pack, unpack
from state_store.kv.block_store import BlockStore, BlocksUnavailable, Outgoing
from state_store.kv.budget import Budget, Use
from tests.redis_server import documented_acl

SIZE = 3_000_000
PATIENT_S = 2.0
WITHIN_S = 20.0


def opened(url: str) -> BlockStore:
    return BlockStore(url, Budget(1 << 30, 60.0), control_timeout_s=PATIENT_S)


def block(number: int) -> BlockId:
    return BlockId(b"f" * 16, number.to_bytes(32, "big"))


def outgoing(number: int, size: int = SIZE) -> Outgoing:
    payload = memoryview(bytes(range(250)) * (size // 250))
    return Outgoing(block(number), pack(block(number), payload)[0], payload)


def there_and_back(store: BlockStore, number: int = 0) -> str:
    """Stores a block and fetches it: what is wrong with it, empty for nothing."""
    place = memoryview(bytearray(HEAD_BYTES + SIZE))
    store.store([outgoing(number)])
    (size,) = store.fetch([block(number)], [place], time.monotonic() + WITHIN_S)
    return "absent" if size is None else unpack(block(number), place[:size], memoryview(bytearray(SIZE)))


async def until_done(act: Callable[[], str]) -> str:
    """What `act` says once it does not fail any more."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                return await asyncio.to_thread(act)
            except BlocksUnavailable:
                await asyncio.sleep(0.05)


@pytest.mark.asyncio(loop_scope="session")
async def test_under_tls_with_our_own_authority_and_no_other(tmp_path: Path) -> None:
    ours, others = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(str(tmp_path / "ours.pem"))
    others.cert_pem.write_to_path(str(tmp_path / "others.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ours.issue_cert("127.0.0.1").configure_cert(context)
    async with RedisProcess() as server, proxy_to(server.port, context) as tls:
        url = f"rediss://127.0.0.1:{tls.port}?ca={tmp_path}"
        store, stranger = opened(f"{url}/ours.pem"), opened(f"{url}/others.pem")
        assert await until_done(lambda: there_and_back(store)) == ""
        with pytest.raises(BlocksUnavailable, match="certificate"):
            await asyncio.to_thread(there_and_back, stranger)
        store.close()
        stranger.close()


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="session")
async def test_sentinels_name_the_master_and_after_a_failover_the_other_one() -> None:
    async with running_sentinels() as group:
        store = opened(group.url)
        assert await asyncio.to_thread(there_and_back, store) == ""
        await group.master.kill()
        assert await until_done(lambda: there_and_back(store, 1)) == ""
        store.close()


@pytest.mark.asyncio(loop_scope="session")
async def test_a_user_with_the_documented_rights_and_one_without() -> None:
    acl = (
        "--user",
        "gate",
        "on",
        ">s3cret",
        *documented_acl(),
        "--user",
        "half",
        "on",
        ">s3cret",
        "~*",
        "+@string",
    )

    def all_of(store: BlockStore) -> None:
        assert there_and_back(store) == ""
        assert store.exist([block(0)]) == [True]
        assert not store.count([Use(block(0).key, SIZE, 0)])
        store.acknowledge("turn")
        store.discard([block(0)])
        assert store.exist([block(0)]) == [False]

    async with RedisProcess(*acl) as server:
        store, half = (opened(f"redis://{user}:s3cret@{server.address}") for user in ("gate", "half"))
        await asyncio.to_thread(all_of, store)
        with pytest.raises(BlocksUnavailable, match="exists"):
            await asyncio.to_thread(half.exist, [block(0)])
        store.close()
        half.close()


@pytest.mark.asyncio(loop_scope="session")
async def test_a_read_only_replica_takes_nothing() -> None:
    async with (
        RedisProcess() as master,
        RedisProcess("--replicaof", "127.0.0.1", str(master.port)) as replica,
    ):
        store = opened(replica.url)
        with pytest.raises(BlocksUnavailable, match="READONLY"):
            await asyncio.to_thread(there_and_back, store)
        store.close()


@pytest.mark.asyncio(loop_scope="session")
async def test_what_a_replica_has_is_copied() -> None:
    async with RedisProcess() as master, RedisProcess("--replicaof", "127.0.0.1", str(master.port)):
        store = opened(f"{master.url}?wait_replicas=1")

        def copied() -> str:
            said = there_and_back(store)
            store.count([Use(block(0).key, SIZE, 0)], must_be_copied=True)
            return said

        assert await until_done(copied) == ""
        store.close()


@pytest.mark.asyncio(loop_scope="session")
async def test_a_cluster_s_nodes_share_the_blocks(cluster: Cluster) -> None:
    store = opened(cluster.url)

    def spread() -> None:
        numbers = range(40)
        assert store.store([outgoing(n, 1000) for n in numbers]) == [True] * 40
        assert store.exist([block(n) for n in (3, 99, 7)]) == [True, False, True]
        place = memoryview(bytearray(HEAD_BYTES + 1000))
        found = store.fetch([block(n) for n in numbers], [place] * 40, time.monotonic() + WITHIN_S)
        for number, size in zip(numbers, found, strict=True):
            assert size == len(place)
            assert unpack(block(number), place, memoryview(bytearray(1000))) == ""
        assert not store.count([Use(block(n).key, 1000, n) for n in numbers])
        store.acknowledge("turn-1")
        store.discard([block(n) for n in numbers])
        assert not any(store.exist([block(n) for n in numbers]))

    await asyncio.to_thread(spread)
    store.close()


@pytest.mark.asyncio(loop_scope="session")
async def test_a_cluster_s_budget_is_one(cluster: Cluster) -> None:
    store = BlockStore(cluster.url, Budget(10 * (HEAD_BYTES + 1000), 60.0), control_timeout_s=PATIENT_S)

    def fill() -> None:
        for number in range(100, 130):
            store.store([outgoing(number, 1000)])
            store.count([Use(block(number).key, HEAD_BYTES + 1000, 0)])
        assert sum(store.exist([block(n) for n in range(100, 130)])) == 10

    await asyncio.to_thread(fill)
    store.close()
