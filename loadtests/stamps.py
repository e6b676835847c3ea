"""When a token was written and when it arrived: what the engine says of it, and what the kernel does.

A load generator that holds hundreds of streams is late to read some of them. The kernel knows when a segment arrived,
so that this lateness need not be in any figure; and how late each read was can be told beside.
"""

import socket
import struct
import time

ASKED = "sim_stamps"
"""The field of a request that has the simulated engine say when it wrote each event."""
SENT_AT = "sim_sent_at"
"""The field of an event that says so: seconds of `time.monotonic`, which all processes of a machine share."""
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0


class StampedReader:
    """Reads a socket, and says when what it reads arrived: by the kernel where that tells, or when it was read."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._ahead_s = time.time() - time.monotonic()
        self.is_stamped = _asks_for_stamps(connection)

    def read(self, most_bytes: int) -> tuple[bytes, float, float]:
        """Data, when it arrived (`time.monotonic`), and how much later it was read."""
        if not self.is_stamped:
            data = self._connection.recv(most_bytes)
            return data, time.monotonic(), 0.0
        data, told, _, _ = self._connection.recvmsg(most_bytes, _ANCILLARY_BYTES)
        now = time.monotonic()
        for level, kind, stamp in told:
            if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
                seconds, ns = _TIMESPEC.unpack(stamp)
                arrived_at = min(seconds + ns / 1e9 - self._ahead_s, now)
                return data, arrived_at, now - arrived_at
        return data, now, 0.0


def _asks_for_stamps(connection: socket.socket) -> bool:
    """False where the kernel has none to give, or TLS hides them."""
    if not hasattr(connection, "recvmsg") or not _ANCILLARY_BYTES or hasattr(connection, "cipher"):
        return False
    try:
        connection.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True
