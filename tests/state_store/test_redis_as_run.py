"""Redis as it is run: passwords, TLS, replicas, Sentinels and Clusters, each against real servers."""

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trustme

from loadtests.cut_proxy import proxy_to
from loadtests.processes import RedisProcess
from loadtests.redis_groups import Cluster, running_cluster, running_sentinels
from state_store.open import open_state_store
from state_store.patience import within
from state_store.protocol import StateStore, StateStoreUnavailable
from state_store.redis import RedisStateStore
from state_store.redis_servers import LOOK_UP_WITHIN_S
from state_store.script import Fields, Script
from tests.redis_server import documented_acl

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATIENT_S = 5.0


def _count(fields: Fields, words: object) -> list[bytes]:
    fields[b"n"] = b"%d" % (int(fields.get(b"n", b"0")) + 1)
    return [fields[b"n"]]


COUNT = Script("count", "return {redis.call('HINCRBY', KEYS[1], 'n', 1)}", _count)


async def until(condition: Callable[[], Awaitable[bool]], within_s: float = 15.0) -> None:
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 - the condition is another process's
            await asyncio.sleep(0.02)


async def takes(store: StateStore, key: str = "probe") -> bool:
    try:
        return await store.put("g", key, b"1", ttl_s=60)
    except StateStoreUnavailable:
        return False


async def test_users_of_the_acl_and_who_is_none() -> None:
    acl = ("--user", "gate", "on", ">s3cret", *documented_acl(), "--user", "default", "off")
    async with RedisProcess(*acl) as server:
        store = RedisStateStore(f"redis://gate:s3cret@{server.address}", timeout_s=PATIENT_S)
        assert await store.put("g", "k", b"1", ttl_s=60)
        assert (await store.run(COUNT, "g", "k", [], ttl_s=60)).values == [b"1"]
        await store.append("t", b"x", max_values=9)
        assert len(await store.read("t")) == 1
        assert await store.scan("g") == {"k": b"1"}
        assert await store.get("g", "k") == b"1"
        await store.delete("g", "k")
        await store.close()
        for wrong in ("gate:wrong@", "", ":s3cret@"):
            stranger = RedisStateStore(f"redis://{wrong}{server.address}", timeout_s=PATIENT_S)
            with pytest.raises(StateStoreUnavailable) as said:
                await stranger.get("g", "k")
            assert "s3cret" not in str(said.value)
            await stranger.close()


async def test_tls_to_whom_our_authority_vouches_for_and_no_other(tmp_path: Path) -> None:
    ours, others = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(str(tmp_path / "ours.pem"))
    others.cert_pem.write_to_path(str(tmp_path / "others.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ours.issue_cert("127.0.0.1").configure_cert(context)
    async with RedisProcess() as server, proxy_to(server.port, context) as tls:
        url = f"rediss://127.0.0.1:{tls.port}?ca={tmp_path}"
        store = RedisStateStore(f"{url}/ours.pem", timeout_s=PATIENT_S)
        assert await takes(store)
        await store.close()
        for refused in (f"{url}/others.pem", f"redis://127.0.0.1:{tls.port}"):
            stranger = RedisStateStore(refused, timeout_s=1.0)
            with pytest.raises(StateStoreUnavailable):
                await stranger.get("g", "probe")
            await stranger.close()


async def test_a_turn_counts_as_replicated_when_the_replica_has_it() -> None:
    async with RedisProcess() as master:
        follow = ("--replicaof", "127.0.0.1", str(master.port))
        async with RedisProcess(*follow) as replica:
            url = f"redis://{master.address}?wait_replicas=1"
            store = RedisStateStore(url, timeout_s=PATIENT_S)

            async def is_replicated() -> bool:
                return (await store.run(COUNT, "g", "k", [], ttl_s=60)).kept == "replicated"

            await until(is_replicated)
            replica.freeze()
            hasty = RedisStateStore(url, timeout_s=0.1)
            ran = await hasty.run(COUNT, "g", "k", [], ttl_s=60)
            assert (len(ran.values), ran.kept) == (1, "unconfirmed")
            replica.thaw()
            await hasty.close()
            await store.close()


async def test_a_read_only_replica_is_not_a_store_but_says_so() -> None:
    async with (
        RedisProcess() as master,
        RedisProcess("--replicaof", "127.0.0.1", str(master.port)) as replica,
    ):
        store = RedisStateStore(replica.url, timeout_s=PATIENT_S)
        for verb in (
            lambda: store.put("g", "k", b"1", ttl_s=60),
            lambda: store.run(COUNT, "g", "k", [], ttl_s=60),
            lambda: store.append("t", b"1", max_values=9),
        ):
            with pytest.raises(StateStoreUnavailable, match="read only"):
                await verb()
        await store.close()


async def test_a_full_server_says_so_and_is_read_all_the_same() -> None:
    async with RedisProcess("--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as server:
        store = RedisStateStore(server.url, timeout_s=PATIENT_S)
        await store.put("g", "k", b"1", ttl_s=60)

        async def fill() -> None:
            for number in range(100):
                await store.put("g", f"{number}", bytes(100_000), ttl_s=60)

        with pytest.raises(StateStoreUnavailable, match="maxmemory"):
            await fill()
        assert await store.get("g", "k") == b"1"
        await store.close()


async def test_a_cluster_s_entries_spread_and_a_moved_slot_is_followed(cluster: Cluster) -> None:
    store = RedisStateStore(cluster.url, timeout_s=PATIENT_S)
    for number in range(60):
        assert (await store.run(COUNT, "s", f"{number}", [], ttl_s=60)).values == [b"1"]
    places = Counter(store.place_of("s", f"{number}") for number in range(60))
    assert len(places) == 3
    assert max(places.values()) < 40
    # Another client moves the slot of one entry to the next node.
    home = next(n for n in cluster.nodes if n.address == store.place_of("s", "0"))
    other = next(n for n in cluster.nodes if n is not home)
    slot = (await home.ask("CLUSTER", "KEYSLOT", "graceway:{s|0}")).strip(b":\r\n").decode()
    await _migrate(home, other, slot, "graceway:{s|0}", store)
    assert (await store.run(COUNT, "s", "0", [], ttl_s=60)).values == [b"4"]
    assert store.place_of("s", "0") == other.address
    await store.close()


async def _migrate(
    home: RedisProcess, other: RedisProcess, slot: str, key: str, store: RedisStateStore
) -> None:
    """Step by step, and used at each of them: before, while it is on its way, and once it has arrived."""
    names = [(await n.ask("CLUSTER", "MYID")).split(b"\r\n")[1].decode() for n in (home, other)]
    await other.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
    await home.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
    assert (await store.run(COUNT, "s", "0", [], ttl_s=60)).values == [b"2"]
    assert await home.ask("MIGRATE", "127.0.0.1", str(other.port), key, "0", "1000") == b"+OK\r\n"
    assert (await store.run(COUNT, "s", "0", [], ttl_s=60)).values == [b"3"]
    for node in (other, home):
        await node.ask("CLUSTER", "SETSLOT", slot, "NODE", names[1])


async def test_who_gives_calls_time_gives_it_to_the_first_look_up_too(cluster: Cluster) -> None:
    store = RedisStateStore(cluster.url, timeout_s=PATIENT_S)
    for node in cluster.nodes:
        node.freeze()
    try:
        asked = asyncio.create_task(store.get("g", "nothing"))
        done, _ = await asyncio.wait([asked], timeout=1.3 * LOOK_UP_WITHIN_S)
        assert not done
    finally:
        for node in cluster.nodes:
            node.thaw()
    assert await asked is None
    await store.close()


async def test_one_frozen_node_of_a_cluster_leaves_the_others_in_use(cluster: Cluster) -> None:
    store = open_state_store(cluster.url, timeout_s=0.2)
    keys = [f"{number}" for number in range(30)]
    raw = RedisStateStore(cluster.url, timeout_s=PATIENT_S)
    for key in keys:
        await raw.run(COUNT, "s", key, [], ttl_s=60)
        await until(lambda key=key: _counts(store, key))  # type: ignore[misc]
    frozen = cluster.nodes[0]
    there = {key for key in keys if raw.place_of("s", key) == frozen.address}
    assert 0 < len(there) < len(keys)
    frozen.freeze()
    try:
        await _counts(store, next(iter(there)))
        begun = time.monotonic()
        assert {key for key in keys if not await _counts(store, key)} == there
        assert time.monotonic() - begun < 2.0
    finally:
        frozen.thaw()
    await store.close()
    await raw.close()


async def _counts(store: StateStore, key: str) -> bool:
    try:
        return bool((await store.run(COUNT, "s", key, [], ttl_s=60)).values)
    except StateStoreUnavailable:
        return False


@pytest.mark.slow
async def test_a_new_master_is_found_while_it_is_written_to() -> None:
    async with running_sentinels() as group:
        # The first Sentinel that is named is of no help.
        group.sentinels[0].freeze()
        store = open_state_store(group.url)
        await until(lambda: takes(store))
        await group.master.kill()
        begun = time.monotonic()
        await until(lambda: takes(store))
        assert time.monotonic() - begun < 12.0
        assert await store.get("g", "probe") == b"1"
        assert b"role:master" in await group.replica.ask("INFO", "replication")
        group.sentinels[0].thaw()
        await store.close()


@pytest.mark.slow
async def test_a_cluster_s_failover_is_followed() -> None:
    async with running_cluster(has_replicas=True) as cluster:
        store = open_state_store(cluster.url)
        keys = [f"{number}" for number in range(20)]
        for key in keys:
            await until(lambda key=key: _counts(store, key))  # type: ignore[misc]
        await cluster.nodes[0].kill()
        for key in keys:
            await until(lambda key=key: _counts(store, key))  # type: ignore[misc]
        await store.close()


async def test_a_busy_loop_does_not_make_the_store_look_ill() -> None:
    async with RedisProcess() as server:
        store = RedisStateStore(server.url, timeout_s=0.05)
        await until(lambda: takes(store))

        async def hog() -> None:
            while True:
                time.sleep(0.06)  # noqa: ASYNC251 - the loop is to be held up
                await asyncio.sleep(0)

        busy = asyncio.create_task(hog())
        for number in range(4):
            assert await store.put("g", f"{number}", b"1", ttl_s=60)
        busy.cancel()
        server.freeze()
        begun = time.monotonic()
        with pytest.raises(StateStoreUnavailable):
            await store.get("g", "probe")
        assert time.monotonic() - begun < 0.5
        server.thaw()
        await store.close()


async def test_a_limit_counts_the_loop_s_turns_and_is_kept_by_an_idle_one() -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with pytest.raises(TimeoutError):
        async with within(0.05):
            await asyncio.Event().wait()
    assert 0.045 <= loop.time() - begun < 0.3
    async with within(0.05):
        for _ in range(3):
            time.sleep(0.06)  # noqa: ASYNC251 - the loop is to be held up
            await asyncio.sleep(0)
    async with within(0.01):
        pass
    await asyncio.sleep(0.03)
