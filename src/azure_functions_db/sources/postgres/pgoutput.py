"""The messages of pgoutput, PostgreSQL's own output plugin for logical decoding (version 1), and places in the log."""

from __future__ import annotations

import datetime as dt
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from azure_functions_db.core.errors import Code, FetchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Unchanged:
    """Stands for a large value that an update did not touch, and that the log therefore does not have."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
Value = bytes | Unchanged | None
"""A value in the text form of its type, NULL, or unchanged."""


class MalformedMessageError(FetchError):
    """The server has sent something that is no message of pgoutput."""

    code = Code.MESSAGE_MALFORMED


class Begin(NamedTuple):
    """A transaction begins; transactions come in the order of their commits."""

    commit_lsn: int
    committed_at: dt.datetime
    xid: int


class Commit(NamedTuple):
    """The transaction is complete; the next one begins at or after ``end_lsn``."""

    commit_lsn: int
    end_lsn: int


class Column(NamedTuple):
    """A column of a relation."""

    name: str
    type_oid: int
    type_modifier: int
    is_key: bool


class Relation(NamedTuple):
    """A table as it was when the changes that follow were made."""

    oid: int
    schema: str
    name: str
    identity: str
    """Its replica identity: d (primary key), i (another index), f (the full row), n (nothing)."""
    columns: tuple[Column, ...]


class Insert(NamedTuple):
    """A new row."""

    oid: int
    new: list[Value]


class Update(NamedTuple):
    """A changed row; ``old`` is its key where that has changed, or the whole row before."""

    oid: int
    old_kind: str | None
    """K (key), O (the full row before), or None."""
    old: list[Value] | None
    new: list[Value]


class Delete(NamedTuple):
    """A row that is gone."""

    oid: int
    old_kind: str
    old: list[Value]


class Truncate(NamedTuple):
    """All rows of some tables are gone."""

    oids: tuple[int, ...]


class Other(NamedTuple):
    """A message that tells nothing about rows: an origin, a type, a logical message."""

    kind: str


Message = Begin | Commit | Relation | Insert | Update | Delete | Truncate | Other

_EPOCH: Final = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_BEGIN: Final = struct.Struct(">xQqI")
_COMMIT: Final = struct.Struct(">xxQQ8x")
_COLUMN: Final = struct.Struct(">Ii")
_INT32: Final = struct.Struct(">I").unpack_from
_INT16: Final = struct.Struct(">H").unpack_from
_TEXT, _NULL, _UNCHANGED, _NEW = b"tnuN"


def decoded(data: bytes) -> Message:
    """Return the message that these bytes are."""
    try:
        message, end = _DECODERS[data[:1]](data)
    except (KeyError, IndexError, ValueError, OverflowError, struct.error) as error:
        raise MalformedMessageError(f"The server sent no pgoutput message: {type(error).__name__}") from error
    if end != len(data):
        raise MalformedMessageError(f"A pgoutput message of {len(data)} bytes should have had {end}")
    return message


def begun(data: bytes) -> tuple[int, dt.datetime, int]:
    """Return the parts of a `Begin`, as `decoded` does but quicker."""
    try:
        lsn, at, xid = _BEGIN.unpack(data)
        return lsn, moment(at), xid
    except (struct.error, OverflowError):
        raise MalformedMessageError("The server sent a begin that is none") from None


def committed(data: bytes) -> tuple[int, int]:
    """Return the parts of a `Commit`, as `decoded` does but quicker."""
    try:
        return _COMMIT.unpack(data)
    except struct.error:
        raise MalformedMessageError("The server sent a commit that is none") from None


def inserted(data: bytes) -> tuple[int, list[Value]]:
    """Return table and values of an insert, as `decoded` does but quicker: most messages of most logs are inserts."""
    try:
        values, end = _tuple(data, 6)
        if end == len(data) and data[5] == _NEW:
            return _INT32(data, 1)[0], values
    except (IndexError, ValueError, struct.error):
        pass
    raise MalformedMessageError("The server sent an insert that is none")


def moment(microseconds: int) -> dt.datetime:
    """Return a time of the replication protocol, which counts from the year 2000."""
    return _EPOCH + dt.timedelta(microseconds=microseconds)


def _begin(data: bytes) -> tuple[Begin, int]:
    return Begin(*begun(data)), _BEGIN.size


def _commit(data: bytes) -> tuple[Commit, int]:
    return Commit(*committed(data)), _COMMIT.size


def _relation(data: bytes) -> tuple[Relation, int]:
    (oid,) = _INT32(data, 1)
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    (count,) = _INT16(data, at + 1)
    identity, at = chr(data[at]), at + 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _text(data, at + 1)
        type_oid, modifier = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(Column(column, type_oid, modifier, bool(flags & 1)))
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns)), at


def _insert(data: bytes) -> tuple[Insert, int]:
    _expect(data[5:6], b"N")
    new, at = _tuple(data, 6)
    return Insert(_INT32(data, 1)[0], new), at


def _update(data: bytes) -> tuple[Update, int]:
    kind, at = chr(data[5]), 6
    old: list[Value] | None = None
    if kind in {"K", "O"}:
        old, at = _tuple(data, 6)
        _expect(data[at : at + 1], b"N")
        at += 1
    else:
        _expect(data[5:6], b"N")
    new, at = _tuple(data, at)
    return Update(_INT32(data, 1)[0], kind if old is not None else None, old, new), at


def _delete(data: bytes) -> tuple[Delete, int]:
    kind = chr(data[5])
    if kind not in {"K", "O"}:
        raise ValueError(kind)
    old, at = _tuple(data, 6)
    return Delete(_INT32(data, 1)[0], kind, old), at


def _truncate(data: bytes) -> tuple[Truncate, int]:
    (count,) = _INT32(data, 1)
    return Truncate(struct.unpack_from(f">{count}I", data, 6)), 6 + 4 * count


def _other(data: bytes) -> tuple[Other, int]:
    return Other(chr(data[0])), len(data)


def _tuple(data: bytes, at: int) -> tuple[list[Value], int]:
    """Return the values of a row and where they end; the hottest loop of the source."""
    values: list[Value] = []
    (count,) = _INT16(data, at)
    at += 2
    for _ in range(count):
        kind = data[at]
        if kind == _TEXT:
            start = at + 5
            at = start + _INT32(data, at + 1)[0]
            values.append(data[start:at])
        elif kind == _NULL:
            values.append(None)
            at += 1
        elif kind == _UNCHANGED:
            values.append(UNCHANGED)
            at += 1
        else:
            raise ValueError(kind)
    return values, at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def _expect(found: bytes, wanted: bytes) -> None:
    if found != wanted:
        raise ValueError(found)


_DECODERS: Final[dict[bytes, Callable[[bytes], tuple[Message, int]]]] = {
    b"B": _begin,
    b"C": _commit,
    b"R": _relation,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
    b"O": _other,
    b"Y": _other,
    b"M": _other,
}


def encoded_row(values: Sequence[Value]) -> bytes:
    """Return a row as a message holds it: the reverse of decoding, for tests and stand-ins."""
    parts = [struct.pack(">H", len(values))]
    for value in values:
        match value:
            case None:
                parts.append(b"n")
            case bytes():
                parts.append(struct.pack(">cI", b"t", len(value)) + value)
            case _:
                parts.append(b"u")
    return b"".join(parts)


def lsn_of(text: str) -> int:
    """Return the place that PostgreSQL writes like ``0/16B3748``."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(lsn: int) -> str:
    """Return a place as PostgreSQL writes it."""
    return "%X/%X" % divmod(lsn, 1 << 32)  # noqa: UP031 - half the time of an f-string, for every transaction
