"""Sets of transactions, as MySQL and MariaDB name them."""

from __future__ import annotations

import re
import struct
from typing import Protocol, Self
from uuid import UUID

from azure_functions_db.core.errors import ConfigurationError


class GtidSet(Protocol):
    """The transactions that are done."""

    def add(self, gtid: str) -> None:
        """Put one more transaction in."""

    def contains(self, other: Self) -> bool:
        """Tell whether all transactions of the other are in here."""

    def encoded(self) -> bytes:
        """Return the form in which a server is told."""

    def copy(self) -> Self:
        """Return another set of the same transactions."""


class MySqlGtids:
    """``uuid:1-5:7,uuid:1-3``: for each server that has written, the numbers of its transactions."""

    def __init__(self, text: str) -> None:
        self._intervals: dict[str, list[tuple[int, int]]] = {}
        for part in filter(None, re.split(r"[,\s]+", text)):
            server, *numbers = part.split(":")
            try:
                name = str(UUID(server))
                for number in numbers:
                    first, _, last = number.partition("-")
                    self.insert(name, int(first), int(last or first))
            except ValueError:
                raise ConfigurationError(f"{part!r} is no GTID set of MySQL, such as uuid:1-5") from None

    def __str__(self) -> str:
        return ",".join(
            ":".join([server, *(f"{first}-{last}" if last > first else str(first) for first, last in intervals)])
            for server, intervals in sorted(self._intervals.items())
        )

    def add(self, gtid: str) -> None:
        """Put one more transaction in."""
        server, _, number = gtid.partition(":")
        intervals = self._intervals.get(server)
        if intervals and intervals[-1][1] == int(number) - 1:
            intervals[-1] = (intervals[-1][0], int(number))
        else:
            self.insert(server, int(number), int(number))

    def contains(self, other: MySqlGtids) -> bool:
        """Tell whether all transactions of the other are in here."""
        return all(
            any(low <= first and last <= high for low, high in self._intervals.get(server, ()))
            for server, intervals in other._intervals.items()
            for first, last in intervals
        )

    def encoded(self) -> bytes:
        """Return the form in which a server is told."""
        parts = [struct.pack("<Q", len(self._intervals))]
        for server, intervals in sorted(self._intervals.items()):
            parts.append(UUID(server).bytes + struct.pack("<Q", len(intervals)))
            parts += [struct.pack("<QQ", first, last + 1) for first, last in intervals]
        return b"".join(parts)

    def copy(self) -> MySqlGtids:
        """Return another set of the same transactions."""
        return MySqlGtids(str(self))

    def insert(self, server: str, first: int, last: int) -> None:
        """Put a stretch of a server's transactions in."""
        if not 0 < first <= last:
            raise ValueError(first)
        merged: list[tuple[int, int]] = []
        for low, high in sorted([*self._intervals.get(server, ()), (first, last)]):
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], high))
            else:
                merged.append((low, high))
        self._intervals[server] = merged


class MariaDbGtids:
    """``0-1-532,1-1-7``: for each domain, its last transaction."""

    def __init__(self, text: str) -> None:
        self._last: dict[int, tuple[int, int]] = {}
        for part in filter(None, re.split(r"[,\s]+", text)):
            try:
                self.add(part)
            except ValueError:
                raise ConfigurationError(f"{part!r} is no GTID of MariaDB, such as 0-1-532") from None

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self._last.items()))

    def add(self, gtid: str) -> None:
        """Put one more transaction in, and with it all of its domain before."""
        domain, server, number = map(int, gtid.split("-"))
        self._last[domain] = (server, number)

    def contains(self, other: MariaDbGtids) -> bool:
        """Tell whether all transactions of the other are in here."""
        return all(self._last.get(domain, (0, 0))[1] >= number for domain, (_, number) in other._last.items())

    def encoded(self) -> bytes:
        """Return the form in which a server is told."""
        return str(self).encode()

    def copy(self) -> MariaDbGtids:
        """Return another set of the same transactions."""
        return MariaDbGtids(str(self))
