"""Which store a URL of the config opens."""

import pytest

from state_store.guarded import GuardedStateStore
from state_store.memory import MemoryStateStore
from state_store.open import open_state_store


def test_memory() -> None:
    assert isinstance(open_state_store("memory"), MemoryStateStore)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:1/0",
        "rediss://u:p@h",
        "unix:///run/redis.sock",
        "redis+sentinel://h:1,i/state?tls=true&wait_replicas=1",
        "redis+cluster://h:1,i:2",
    ],
)
async def test_remote_stores_are_guarded_and_not_connected_yet(url: str) -> None:
    store = open_state_store(url)
    assert isinstance(store, GuardedStateStore)
    assert store.calls == 0
    await store.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis+sentinel://h", "name of the master"),
        ("redis+cluster://h/1", "no databases"),
        ("embedded", "none of"),
        ("http://h", "none of"),
        ("", "none of"),
    ],
)
def test_other_urls_are_refused_in_words(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        open_state_store(url)
