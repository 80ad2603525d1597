"""The server's own process, where it runs on this host: CPU time and memory, found by the port it listens on."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """CPU seconds since their start and resident bytes of the server and its children (python backends run in
    processes of their own; memory that they share counts in each) at `at_s` of `time.monotonic`."""

    at_s: float
    cpu_s: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """The server's process over a window: CPU in cores, memory in bytes (the most that was seen)."""

    pid: int
    cpu_cores: float | None
    rss_bytes: int


def is_this_host(host: str) -> bool:
    """Whether `host` is an address of this machine."""
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    if all(ipaddress.ip_address(str(a).partition("%")[0]).is_loopback for a in addresses):
        return True
    try:
        import psutil
    except ImportError:
        return False
    own = {entry.address.partition("%")[0] for entries in psutil.net_if_addrs().values() for entry in entries}
    return {str(a).partition("%")[0] for a in addresses} <= own


class ServerProcess:
    """The process that listens on a port of this host."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.pid: int = process.pid

    @classmethod
    def listening_on(cls, host: str, port: int) -> ServerProcess | None:
        """Find it; None on another host, without psutil, or where it may not be seen (another user's)."""
        if not is_this_host(host):
            return None
        try:
            import psutil
        except ImportError:
            return None
        try:
            connections = psutil.net_connections(kind="tcp")
        except (psutil.Error, OSError):
            return None
        for connection in connections:
            listens = connection.status == psutil.CONN_LISTEN and connection.pid
            if listens and connection.laddr and connection.laddr[1] == port:
                try:
                    return cls(psutil.Process(connection.pid))
                except psutil.Error:
                    return None
        return None

    def read(self, at_s: float) -> ProcessReading | None:
        """CPU and memory now; None once it has gone."""
        import psutil

        cpu_s, rss = 0.0, 0
        try:
            members = [self._process, *self._process.children(recursive=True)]
            alive = self._process.is_running()
        except psutil.Error:
            return None
        for member in members if alive else ():
            try:
                with member.oneshot():
                    times = member.cpu_times()
                    cpu_s += times.user + times.system
                    rss += member.memory_info().rss
            except psutil.Error:
                continue  # a child that has just ended
        return ProcessReading(at_s, cpu_s, rss) if rss else None
