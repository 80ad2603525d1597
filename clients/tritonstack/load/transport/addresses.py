"""The addresses behind a server's name, and which of them each connection tries."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Any

Address = tuple[int, Any]
"""Address family and socket address."""


class AddressBook:
    """What a name resolves to; asked once at the start, and again in the background where nothing answered.

    A name may stand for several servers (a headless service) and for each of them in two families. Connections are
    spread over the servers; a connection tries one address of each family in the system's order of preference.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._asking: threading.Thread | None = None
        self.problem = ""
        """Why the name could not be resolved, empty where it could."""
        self._families: list[list[Address]] = []
        self._ask()

    @property
    def servers(self) -> int:
        """How many servers there seem to be, at least 1."""
        return max((len(family) for family in self._families), default=1)

    def candidates(self, connection: int) -> Sequence[Address]:
        """The addresses that connection number `connection` tries in turn; none where the name is not known."""
        return [family[connection % len(family)] for family in self._families]

    def ask_again(self) -> None:
        """Resolve the name anew without waiting for it."""
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._ask, daemon=True, name="tritonstack-resolver")
            self._asking.start()

    def _ask(self) -> None:
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            self.problem = f"the name {self._host} cannot be resolved: {getattr(error, 'strerror', None) or error}"
            return
        families: dict[int, list[Address]] = {}
        for family, _, _, _, where in found:
            known = families.setdefault(family, [])
            if (family, where) not in known:
                known.append((family, where))
        self.problem = ""
        self._families = list(families.values())
