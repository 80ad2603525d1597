"""What transports over own sockets share: how a connection begins, when the next is tried, and the loop of `poll`."""

from __future__ import annotations

import errno
import select
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from tritonstack.load.clock import Readiness
from tritonstack.load.transport import Completion, TransportOptions
from tritonstack.load.transport.addresses import Address, AddressBook

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0
"""Between attempts to connect where nothing listens."""
FAR_S = float("inf")


def begin_connection(address: Address) -> socket.socket:
    """A socket that connects without waiting, or is connected. Raises OSError where it cannot even begin."""
    family, where = address
    begun = socket.socket(family, socket.SOCK_STREAM)
    try:
        begun.setblocking(False)
        begun.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = begun.connect_ex(where)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, errno.errorcode.get(code, "connect"))
    except OSError:
        begun.close()
        raise
    return begun


def refusal(begun: socket.socket, events: int) -> int:
    """The error number with which a connection that had begun has ended by the epoll `events`; 0 where it has not."""
    code = begun.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code == 0 and events & (select.EPOLLERR | select.EPOLLHUP):
        return errno.ECONNREFUSED
    return code


class Backoff:
    """When to connect again: pauses that grow from one failure to the next. Moments are those of `time.monotonic`."""

    __slots__ = ("pause_s", "retry_at_s")

    def __init__(self) -> None:
        self.pause_s = 0.0
        """The last pause; 0 once a connection has worked."""
        self.retry_at_s = 0.0

    def failed(self, now_s: float) -> None:
        self.pause_s = min(max(2 * self.pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        self.retry_at_s = now_s + self.pause_s


class SocketTransport(ABC):
    """The part of a `Transport` that waits: for sockets, for deadlines and for the moment that `poll` is given."""

    def __init__(self, options: TransportOptions) -> None:
        self._endpoint = options.endpoint
        self._book = AddressBook(self._endpoint.host, self._endpoint.port)
        self._readiness = Readiness()
        self._done: list[Completion] = []
        self._next_deadline_s = FAR_S
        """No request ends before by its deadline."""

    def poll(self, until_s: float) -> Sequence[Completion]:
        while True:
            self._advance()
            if self._done:
                # Requests that failed at once; what the sockets hold comes along without waiting for it.
                until_s = 0.0
            for fd, events in self._readiness.wait(min(until_s, self._next_deadline_s)):
                self._handle(fd, events)
            if self._next_deadline_s < FAR_S and (now_s := time.monotonic()) >= self._next_deadline_s:
                self._expire(now_s)
            if self._done:
                done, self._done = self._done, []
                return done
            if time.monotonic() >= until_s:
                return ()

    @abstractmethod
    def _advance(self) -> None:
        """Send what has been waiting since the last look."""

    @abstractmethod
    def _handle(self, fd: int, events: int) -> None:
        """Take what epoll says of a socket, which may be gone by now."""

    @abstractmethod
    def _expire(self, now_s: float) -> None:
        """End the requests whose time is up, and find out when the next one is."""
