"""A connection for values of megabytes, to servers that send them in pieces, soon or late."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from state_store.kv.plain_socket import is_local
from state_store.kv.resp import Connection, ConnectionFailed
from state_store.redis_url import Server

VALUE = bytes(range(256)) * 4096
SILENCE_S = 0.3


@contextmanager
def listening(family: int, address: object) -> Iterator[socket.socket]:
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen()
        yield listener


@contextmanager
def sending(listener: socket.socket, pieces: Sequence[bytes], pause_s: float) -> Iterator[None]:
    """To whoever connects, with a pause before each piece; then it hangs up."""

    def serve() -> None:
        with listener.accept()[0] as client, suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                time.sleep(pause_s)
                client.sendall(piece)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.fixture(params=["unix", "tcp"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, Server]]:
    if request.param == "unix":
        path = str(tmp_path / "redis.sock")
        with listening(socket.AF_UNIX, path) as one:
            yield one, Server(path=path)
    else:
        with listening(socket.AF_INET, ("127.0.0.1", 0)) as one:
            yield one, Server(host="127.0.0.1", port=one.getsockname()[1])


@pytest.mark.parametrize("pause_s", [0.0, 0.01], ids=["at once", "after it has gone to sleep"])
def test_a_value_in_pieces_is_read_whole(listener: tuple[socket.socket, Server], pause_s: float) -> None:
    answer = b"$%d\r\n%s\r\n" % (len(VALUE), VALUE)
    pieces = [answer[at : at + 300_000] for at in range(0, len(answer), 300_000)]
    place = memoryview(bytearray(len(VALUE)))
    with sending(listener[0], pieces, pause_s), Connection(listener[1], {}, 5.0) as connection:
        assert connection.value_into(place) == len(VALUE)
    assert place == VALUE


def test_who_waits_for_a_silent_server_sleeps_and_gives_up_in_time(
    listener: tuple[socket.socket, Server],
) -> None:
    with Connection(listener[1], {}, SILENCE_S) as connection:
        begun_s, cpu_s = time.perf_counter(), time.thread_time()
        with pytest.raises(ConnectionFailed, match="no answer within 300 ms"):
            connection.value_into(memoryview(bytearray(100)))
        assert time.perf_counter() - begun_s >= SILENCE_S
        assert time.thread_time() - cpu_s < SILENCE_S / 3


def test_who_sends_a_little_now_and_then_is_not_read_from_for_ever(
    listener: tuple[socket.socket, Server],
) -> None:
    pieces = [b"$1000000\r\n", *[b"x"] * 60]
    with sending(listener[0], pieces, SILENCE_S / 10), Connection(listener[1], {}, 5.0) as connection:
        begun_s = time.monotonic()
        connection.patience(SILENCE_S / 2, until=begun_s + SILENCE_S)
        with pytest.raises(ConnectionFailed, match="not come whole in time"):
            connection.value_into(memoryview(bytearray(1_000_000)))
        assert SILENCE_S <= time.monotonic() - begun_s < 4 * SILENCE_S


def test_what_is_no_number_is_a_failure_of_the_connection(listener: tuple[socket.socket, Server]) -> None:
    with (
        sending(listener[0], [b"$many\r\n"], 0.0),
        Connection(listener[1], {}, 5.0) as connection,
        pytest.raises(ConnectionFailed, match="no RESP"),
    ):
        connection.value_into(memoryview(bytearray(100)))


def test_a_name_that_is_none_can_t_be_connected_to() -> None:
    with pytest.raises(ConnectionFailed, match=r"a\.\.b is no name of a host"):
        Connection(Server("a..b", 6379), {}, SILENCE_S)


def test_who_hangs_up_is_noticed(listener: tuple[socket.socket, Server]) -> None:
    with (
        sending(listener[0], [b"$100\r\n"], 0.0),
        Connection(listener[1], {}, 5.0) as connection,
        pytest.raises(ConnectionFailed, match="closed"),
    ):
        connection.value_into(memoryview(bytearray(100)))


def test_a_server_is_local_on_a_unix_socket_and_at_an_address_of_one_s_own(
    listener: tuple[socket.socket, Server],
) -> None:
    with socket.socket(listener[0].family) as client:
        client.connect(listener[0].getsockname())
        assert is_local(client)


def test_a_server_at_another_address_is_not_local() -> None:
    with listening(socket.AF_INET, ("127.0.0.2", 0)) as one, socket.socket() as client:
        client.bind(("127.0.0.1", 0))
        client.connect(one.getsockname())
        assert not is_local(client)


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile"])
def test_a_file_that_is_not_there_is_named(option: str) -> None:
    login = {"ssl": True, option: "/no/such.pem"}
    with listening(socket.AF_INET, ("127.0.0.1", 0)) as one:
        server = Server("127.0.0.1", one.getsockname()[1])
        with pytest.raises(ConnectionFailed, match=r"not there: /no/such\.pem"):
            Connection(server, login, SILENCE_S)
