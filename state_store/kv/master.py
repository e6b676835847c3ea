"""Which server has the blocks: the only one, or the master that a Sentinel names now."""

from state_store.kv.resp import Connection, ConnectionFailed
from state_store.redis_url import RedisUrl, Server


def connect_to_master(url: RedisUrl, timeout_s: float) -> Connection:
    """A connection to it. Raises ConnectionFailed."""
    server = _named_by_a_sentinel(url, timeout_s) if url.kind == "sentinel" else url.servers[0]
    return Connection(server, url.login, timeout_s)


def _named_by_a_sentinel(url: RedisUrl, timeout_s: float) -> Server:
    """The master, by the first Sentinel that answers."""
    why = "none was asked"
    question = [b"SENTINEL", b"get-master-addr-by-name", url.master.encode()]
    for sentinel in url.servers:
        try:
            with Connection(sentinel, url.sentinel_login, timeout_s) as connection:
                answer = connection.ask([question])[0]
        except ConnectionFailed as error:
            why = str(error)
            continue
        if isinstance(answer, list) and len(answer) == 2:
            host, port = answer
            if isinstance(host, bytes) and isinstance(port, bytes):
                return Server(host.decode(), int(port))
        why = f"{sentinel} knows no master {url.master!r}"
    raise ConnectionFailed(f"no Sentinel names the master: {why}")
