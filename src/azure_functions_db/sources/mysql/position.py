"""Where a poller stands in a binary log.

A position holds the place of an event that was read, and the checksum of that event. When reading goes on, that event
is read again and has to be the same, byte for byte: whatever was restored, reset or swapped, a log in which another
event stands at that place is another log. A place is found at once, where the server would have to search its files for
a GTID. The GTIDs are for people, for the look whether there is anything new, and for the day when the file is gone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError, SourceConfigurationError

if TYPE_CHECKING:
    from azure_functions_db.sources.stream import LogPosition

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
