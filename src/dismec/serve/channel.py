"""Messages and connections between the processes of one server."""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

assert sys.platform == "linux"  # sockets that keep messages apart and carry descriptors

__all__ = ["Channel", "Message"]

_LARGEST = 1 << 18  # bytes of a message: counts of all paths take a few thousand
_FILES = 8  # file descriptors per message; only one is ever sent

Message = dict[str, Any]


class Channel:
    """One end of a pair of sockets; a message arrives completely or not at all.

    Neither end ever waits for the other: `send` returns whether there was room.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        end.setblocking(False)

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Create both ends of a new channel."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(other)

    def fileno(self) -> int:
        """Return the descriptor, for selectors, event loops and child processes."""
        return self._end.fileno()

    def close(self) -> None:
        """Close this end, which the other end notices."""
        self._end.close()

    def wait(self) -> None:
        """Wait until there is something to receive."""
        self._end.setblocking(True)
        self._end.recv(1, socket.MSG_PEEK)
        self._end.setblocking(False)

    def send(self, message: Message, connection: socket.socket | None = None) -> bool:
        """Send a message, optionally with a connection; False if the other end is full or gone."""
        data = json.dumps(message).encode()
        try:
            if connection is None:
                self._end.send(data)
            else:
                socket.send_fds(self._end, [data], [connection.fileno()])
        except OSError:
            return False
        return True

    def receive(self) -> tuple[Message, socket.socket | None] | None:
        """Return the next message and the connection sent with it; None if there is none now.

        Raises
        ------
        EOFError
            If the other end is gone.
        """
        try:
            data, files, _, _ = socket.recv_fds(self._end, _LARGEST, _FILES)
        except BlockingIOError:
            return None
        except ConnectionError:
            raise EOFError from None
        if not data:
            raise EOFError
        connection = socket.socket(fileno=files[0]) if files else None
        return json.loads(data), connection
