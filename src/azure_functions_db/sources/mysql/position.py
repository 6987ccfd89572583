"""Where a poller stands in a binary log, and the sets of transactions that are done.

A position holds the place of an event that was read, and the checksum of that event. When reading goes on, that event
is read again and has to be the same, byte for byte: whatever was restored, reset or swapped, a log in which another
event stands at that place is another log. A place is found at once, where the server would have to search its files for
a GTID. The GTIDs are for people, for the look whether there is anything new, and for the day when the file is gone.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self
from uuid import UUID

from azure_functions_db.core.errors import ConfigurationError, SourceConfigurationError

if TYPE_CHECKING:
    from azure_functions_db.sources.stream import LogPosition


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


_FILE_AND_OFFSET = re.compile(r"(?P<file>[^\s:]+\.\d+):(?P<offset>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BinlogPosition:
    """The last event that was read, and what was done up to there."""

    file: str = ""
    """Empty where only the GTIDs are known."""
    offset: int = 4
    end: int = 0
    """Where the event at this place ends, and what is not read yet begins."""
    crc: int | None = None
    """The checksum of the event at this place; None where reading begins with it."""
    done: tuple[int, int] | None = None
    """Inside a transaction, which the event at this place begins: the rows events that are done, and the changes of
    the next one."""
    gtids: str | None = None
    """The transactions that are done; None where they are not known."""
    server: str = ""
    """The server's UUID, where it has one."""
    time: int = 0
    """When the last transaction was committed, in seconds since 1970."""

    @classmethod
    def of(cls, position: LogPosition) -> BinlogPosition:
        """Return the position that a checkpoint holds."""
        try:
            done = position.get("done")
            return cls(
                file=str(position["file"]),
                offset=int(position["offset"]),
                end=int(position.get("end") or position["offset"]),
                crc=position.get("crc"),
                done=None if done is None else (int(done[0]), int(done[1])),
                gtids=position.get("gtids"),
                server=position.get("server", ""),
                time=int(position.get("time", 0)),
            )
        except (KeyError, TypeError, ValueError, IndexError):
            raise SourceConfigurationError(
                "The checkpoint holds no position of a binary log: reset the poller (azfdb reset --to-beginning)"
            ) from None

    def written(self) -> LogPosition:
        """Return the position as a checkpoint holds it."""
        fields: dict[str, Any] = {"value": str(self), "file": self.file, "offset": self.offset}
        fields |= {"end": self.end} if self.end > self.offset else {}
        optional = {"crc": self.crc, "gtids": self.gtids, "done": None if self.done is None else list(self.done)}
        fields |= {name: value for name, value in optional.items() if value is not None}
        return fields | {name: value for name, value in (("server", self.server), ("time", self.time)) if value}

    def __str__(self) -> str:
        inside = "" if self.done is None else "+{}.{}".format(*self.done)
        place = f"{self.file}:{self.offset}{inside}" if self.file else ""
        return " ".join(filter(None, [place, self.gtids]))

    @property
    def number(self) -> int:
        """The number of the file."""
        return file_number(self.file)


def parsed(text: str) -> BinlogPosition:
    """Return a position that somebody has typed: a place ``file:offset``, a set of GTIDs, or both."""
    place, gtids = BinlogPosition(), []
    for part in text.split():
        found = _FILE_AND_OFFSET.fullmatch(part)
        if found:
            place = BinlogPosition(file=found["file"], offset=int(found["offset"]))
        else:
            gtids.append(part)
    known = " ".join(gtids)
    if not place.file and not known:
        raise ConfigurationError('A position is "beginning", "now", file:offset, or a set of GTIDs')
    return BinlogPosition(file=place.file, offset=place.offset, gtids=known or None)


def file_number(file: str) -> int:
    """Return the number in the name of a log file."""
    number = file.rpartition(".")[2]
    return int(number) if number.isdigit() else 0


def stem(file: str) -> str:
    """Return the name of a log file without its number."""
    return file.rpartition(".")[0]
