"""Where a source stands: read from a checkpoint, written into the next one."""

from __future__ import annotations

import binascii
import datetime as dt
import json
import shlex
import struct
import unicodedata
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from hashlib import blake2b
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from azure_functions_db.core.clocks import utc_moment
from azure_functions_db.core.errors import SourceConfigurationError
from azure_functions_db.core.serializers import deserialize_position, json_safe, serialize_position
from azure_functions_db.sources.keyset import values
from azure_functions_db.sources.keyset.values import STORABLE, aware_utc, naive_utc, storable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection

    from azure_functions_db.core.types import CheckpointJson, CursorPart, CursorValue
    from azure_functions_db.sources.keyset.definition import Definition
    from azure_functions_db.sources.keyset.plan import Plan


@dataclass(frozen=True)
class Position:
    """The driver's values of cursor and key; nothing means the beginning.

    ``inclusive`` is the wish to start *at* a cursor instead of after it. ``boundary`` is what was delivered at
    the cursor, None where it is not read again.
    """

    values: tuple[Any, ...] = ()
    inclusive: bool = False
    boundary: Boundary | None = None

    @property
    def at_value(self) -> Position:
        """The position from which the rows still to be delivered are to be looked for."""
        return self if self.boundary is None else Position(self.values[:1], inclusive=True)


BEGINNING = Position()
_BEGINNING_TEXT = "beginning"


class Bound(NamedTuple):
    """The cursor value where a page ends; ``inclusive`` says whether rows of that value still belong to it."""

    value: Any
    inclusive: bool = True


def checkpoint_after(plan: Plan, position: Position) -> CheckpointJson:
    """Return the checkpoint of a position; the beginning has one too, for an empty table."""
    definition = plan.definition
    parts = position.values or (None,) * len(definition.order_columns)
    by_name = dict(zip(definition.order_columns, parts, strict=True))
    by_name |= {name: aware_utc(by_name[name]) for name in plan.utc_columns if name in by_name}
    key = {name: by_name[name] for name in definition.pk_columns}
    written: CheckpointJson = {"cursor": serialize_position(by_name[definition.cursor_column], key)}
    if plan.reads_again:
        written[BOUNDARY] = None if position.boundary is None else position.boundary.written(parts[0])
    return written


def position_in(plan: Plan, checkpoint: CheckpointJson, connection: Connection) -> Position | None:
    """Return the position that a checkpoint holds, None if it holds none."""
    written = checkpoint.get("cursor")
    if written is None:
        return None
    cursor, *key = deserialize_position(written, plan.definition.pk_columns)
    if cursor is None:
        return BEGINNING
    if not key:
        return Position(_as_driver_values(plan, [cursor], connection), inclusive=True)
    by_name = {**dict(zip(plan.definition.pk_columns, key, strict=True)), plan.definition.cursor_column: cursor}
    if isinstance(written, list):
        by_name = {name: values.coerced(value, plan.shape.types[name]) for name, value in by_name.items()}
    driver_values = _as_driver_values(plan, [by_name[name] for name in plan.definition.order_columns], connection)
    boundary = boundary_in(checkpoint.get(BOUNDARY), driver_values[0]) if plan.reads_again else None
    return Position(driver_values, boundary=boundary)


def position_after(plan: Plan, cursor: CursorValue, connection: Connection, *, inclusive: bool = False) -> Position:
    """Return the position of a cursor alone, or of a cursor followed by its key."""
    if cursor is None:
        return BEGINNING
    parts = list(cursor) if isinstance(cursor, tuple | list) else [cursor]
    names = [plan.definition.cursor_column, *plan.definition.pk_columns]
    if len(parts) == len(names):
        by_name = dict(zip(names, parts, strict=True))
        parts = [by_name[name] for name in plan.definition.order_columns]
    elif len(parts) != 1:
        raise SourceConfigurationError(f"A position is a cursor, or (cursor, key...) of {len(names)} values")
    return Position(_as_driver_values(plan, parts, connection), inclusive=inclusive and len(parts) == 1)


def described(definition: Definition, checkpoint: CheckpointJson) -> str:
    """Return a checkpoint's position as people read it, and as `parsed` takes it."""
    written = checkpoint.get("cursor")
    cursor, *key = (None,) if written is None else deserialize_position(written, definition.pk_columns)
    if cursor is None:
        return _BEGINNING_TEXT
    by_name = {definition.cursor_column: cursor, **dict(zip(definition.pk_columns, key, strict=bool(key)))}
    return shlex.join(f"{name}={json_safe(value)}" for name, value in by_name.items())


def parsed(plan: Plan, text: str) -> CheckpointJson:
    """Return the checkpoint of a position that somebody has typed, with values of its columns' types."""
    if text.strip() == _BEGINNING_TEXT:
        return {}
    definition = plan.definition
    try:
        by_name = {name: value for name, _, value in (pair.partition("=") for pair in shlex.split(text))}
    except ValueError:
        by_name = {}  # a quote that never ends
    if set(by_name) != {*definition.order_columns, *definition.pk_columns}:
        form = " ".join(f"{name}=..." for name in definition.order_columns)
        raise SourceConfigurationError(f"A position is written {form}, or {_BEGINNING_TEXT!r}, not {text!r}")
    typed = values.revived_row(by_name, plan.shape.types, strict=True)
    key = {name: typed[name] for name in definition.pk_columns}
    return {"cursor": serialize_position(typed[definition.cursor_column], key)}


def lowest(definition: Definition, checkpoints: Sequence[CheckpointJson]) -> CheckpointJson | None:
    """Return where to begin so as to miss nothing that follows any of these; None where cursors cannot be compared.

    One that all share stays as it is. Of several it is the lowest cursor, its rows included, for what was delivered
    at it differs; one that is the key as well belongs to one row, which need not come again.
    """
    positions = [{name: part for name, part in one.items() if name in _POSITION} for one in checkpoints]
    begun = [position for position in positions if position.get("cursor") is not None]
    if not begun or (len(begun) < len(positions) and definition.start_at != "now"):
        return {}  # Who has not begun would begin before all others; but at "now", behind them.
    cursors = [_cursor_in(definition, position) for position in begun]
    if None in cursors:
        return begun[cursors.index(None)]
    if all(position == begun[0] for position in begun):
        return begun[0]
    if not _have_order(cursors):
        if definition.start_at == "now":
            raise SourceConfigurationError(
                f"Which of several {definition.cursor_column} is the lowest only the database knows, and to begin "
                'at "now" would skip rows: give start_at= the lowest value that the old partitions have reached'
            )
        return None
    first: Any = min(cursors)  # type: ignore[type-var]  # they have an order
    key = {definition.cursor_column: first} if definition.pk_columns == (definition.cursor_column,) else {}
    return {"cursor": serialize_position(first, key)}


def is_behind(definition: Definition, checkpoint: CheckpointJson, other: CheckpointJson) -> bool:
    """Tell whether a checkpoint's cursor is certainly lower than another's."""
    one, further = _cursor_in(definition, checkpoint), _cursor_in(definition, other)
    if one is None or further is None:
        return one is None and further is not None
    return _have_order([one, further]) and bool(one < further)  # type: ignore[operator]  # they have an order


def _cursor_in(definition: Definition, checkpoint: CheckpointJson) -> CursorPart:
    written = checkpoint.get("cursor")
    return None if written is None else deserialize_position(written, definition.pk_columns)[0]


def _have_order(cursors: Sequence[Any]) -> bool:
    """Tell whether values are ordered here as in any database; of texts and UUIDs only theirs is known."""
    first = cursors[0]
    if all(cursor == first for cursor in cursors):
        return True
    return not isinstance(first, str | UUID) and all(are_alike(first, cursor) for cursor in cursors)


def _as_driver_values(plan: Plan, parts: list[Any], connection: Connection) -> tuple[Any, ...]:
    names = plan.definition.order_columns
    sample = None
    if plan.dialect.name == "sqlite" and any(isinstance(part, dt.datetime) for part in parts):
        sample = connection.execute(plan.newest(BEGINNING)).scalar()
    return tuple(
        part if type(part) in values.SAME_IN_DRIVERS else _as_driver_value(plan, name, part, connection, sample)
        for name, part in zip(names, parts, strict=False)
    )


def _as_driver_value(plan: Plan, name: str, part: Any, connection: Connection, sample: Any) -> Any:
    if name in plan.utc_columns:
        return naive_utc(part, connection)
    told = plan.as_told(name, part, connection)
    return values.driver_value(told, plan.shape.types[name], plan.dialect, sample)


BOUNDARY = "boundary"
"""The part of a checkpoint that remembers what was delivered at its cursor value."""
_POSITION = {"cursor", BOUNDARY}
MOST_ROWS = 1_000
"""How many rows of one cursor value are remembered; with more, the value is not read again."""

_ENTRY = struct.Struct(">8s8sH")
_DOUBLE = struct.Struct(">d")
_hash = partial(blake2b, digest_size=8)


class Mark(NamedTuple):
    """A delivered row's content, and how often it had been delivered at this cursor value before."""

    content: bytes
    revision: int = 0

    @property
    def label(self) -> str | None:
        """What tells this delivery from the row's first one; None for the first."""
        return f"{self.content.hex()}.{self.revision}" if self.revision else None


@dataclass(frozen=True)
class Boundary:
    """What was delivered at one cursor value, by the digest of each row's key."""

    marks: Mapping[bytes, Mark] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.marks)

    def marked(self, key: bytes, content: bytes) -> Mark:
        """Return the mark that a row has or would get."""
        earlier = self.marks.get(key)
        if earlier is None:
            return Mark(content)
        return earlier if earlier.content == content else Mark(content, (earlier.revision + 1) % (1 << 16))

    def joined(self, marks: Mapping[bytes, Mark], *, complete: bool) -> Boundary | None:
        """Return the boundary with further rows, None if they are too many.

        Rows that have gone are remembered, for they may come back; unless the place is needed, and ``complete``
        says that the given rows are all there are.
        """
        merged = {**self.marks, **marks}
        if len(merged) > MOST_ROWS and complete:
            merged = dict(marks)
        return Boundary(merged) if len(merged) <= MOST_ROWS else None

    def written(self, cursor: Any) -> dict[str, str]:
        """Return the JSON form, which says to which cursor value it belongs."""
        packed = b"".join(_ENTRY.pack(key, *mark) for key, mark in self.marks.items())
        return {"at": _digest_text(cursor), "rows": b64encode(packed).decode()}


def boundary_in(written: Any, cursor: Any) -> Boundary | None:
    """Return the boundary that a checkpoint holds for its cursor value, None if it holds none."""
    match written:
        case {"at": str() as at, "rows": str() as rows} if at == _digest_text(cursor):
            try:
                entries = _ENTRY.iter_unpack(b64decode(rows, validate=True))
                return Boundary({key: Mark(content, revision) for key, content, revision in entries})
            except (binascii.Error, struct.error):
                return None
        case _:
            return None


class Layout:
    """Where a driver's rows have their cursor, their key and everything else; made once for each kind of result."""

    def __init__(self, position: Sequence[int], content: Sequence[int], share: Sequence[int] = ()) -> None:
        self._position = position
        self._share = share
        self._cursor, *self._key = position
        self._content = content

    def position(self, row: Any) -> tuple[Any, ...]:
        """Return a row's cursor and key as a checkpoint holds them."""
        parts = [row[place] for place in self._position]
        return tuple([part if type(part) in STORABLE else storable(part) for part in parts])

    def share_values(self, row: Any) -> list[Any]:
        """Return what tells the share of a row."""
        return [storable(row[place]) for place in self._share]

    def count_at_start(self, rows: Sequence[Any], cursor: Any) -> int:
        """Return how many rows lead at the cursor value."""
        return sum(1 for _ in takewhile(self._is_at(cursor), rows))

    def rows_at(self, rows: Sequence[Any], cursor: Any) -> list[Any]:
        """Return the rows at the cursor value."""
        return list(filter(self._is_at(cursor), rows))

    def fresh(self, rows: Sequence[Any], boundary: Boundary) -> list[tuple[int, bytes, Mark]]:
        """Return the place, the key and the mark of each row that has not been delivered like this."""
        marks = boundary.marks
        return [
            (place, key, boundary.marked(key, content))
            for place, (key, content) in enumerate(self._digests(rows))
            if key not in marks or marks[key].content != content
        ]

    def marks_at_end(self, rows: Sequence[Any], cursor: Any, earlier: Boundary) -> dict[bytes, Mark] | None:
        """Return the marks of the rows that end at the cursor value, None if they are too many."""
        tied = list(takewhile(self._is_at(cursor), reversed(rows)))
        if len(tied) > MOST_ROWS:
            return None
        marks = earlier.marks
        return {
            key: earlier.marked(key, content) if key in marks else Mark(content)
            for key, content in self._digests(tied[::-1])
        }

    def begins_alike(self, rows: Sequence[Any], cursor: Any) -> bool:
        """Tell whether the first row's cursor can be compared with a value."""
        return not rows or rows[0][self._cursor] == cursor or are_alike(storable(rows[0][self._cursor]), cursor)

    def _is_at(self, cursor: Any) -> Callable[[Any], bool]:
        """Return what tells whether a row is at the cursor value."""
        place = self._cursor
        if isinstance(cursor, str):
            return lambda row: bool(row[place] == cursor) or are_tied(storable(row[place]), cursor)
        return lambda row: bool(row[place] == cursor)

    def _digests(self, rows: Sequence[Any]) -> list[tuple[bytes, bytes]]:
        """Return the digests of each row's key and of its content."""
        keys = [[row[place] for place in self._key] for row in rows]
        if any(type(part) not in STORABLE for key in keys for part in key):
            keys = [[storable(part) for part in key] for key in keys]
        contents = [[row[place] for place in self._content] for row in rows]
        digests = [_hash(_joined(values)).digest() for values in (*keys, *contents)]
        return list(zip(digests, digests[len(rows) :], strict=False))


NO_LAYOUT = Layout((0,), ())
"""That of a result without rows."""


def are_tied(one: Any, other: Any) -> bool:
    """Tell whether two cursor values may be the same to the database; its collation may not tell texts apart."""
    if isinstance(one, str) and isinstance(other, str):
        return one == other or _folded(one) == _folded(other)
    return bool(one == other)


def are_alike(one: Any, other: Any) -> bool:
    """Tell whether two cursor values can be compared: a migration may have changed their type."""
    numbers = (int, float, Decimal)
    if isinstance(one, dt.datetime) and isinstance(other, dt.datetime):
        return (one.tzinfo is None) == (other.tzinfo is None)
    return type(one) is type(other) or (isinstance(one, numbers) and isinstance(other, numbers))


def digest(values: Sequence[Any]) -> bytes:
    """Return eight bytes that stand for a row of driver's values."""
    return _hash(_joined(values)).digest()


def _joined(values: Sequence[Any]) -> bytes:
    """Return the values' bytes, each after its length, so that no two rows have the same."""
    joined = b""
    for value in values:
        kind = type(value)
        if kind is str:  # The most common kinds are written here, without a call for each value.
            part = value.encode("utf-8", "surrogatepass")
            joined += b"%d:s%b" % (len(part) + 1, part)
        elif kind is int:
            part = b"%d" % value
            joined += b"%d:i%b" % (len(part) + 1, part)
        elif kind is float:
            joined += b"9:f" + _DOUBLE.pack(value)
        else:
            part = _packed(value)
            joined += b"%d:%b" % (len(part), part)
    return joined


def _packed(value: Any) -> bytes:
    """Return a value's bytes, led by its kind; a moment is the same in every time zone."""
    match value:
        case None:
            return b"n"
        case str():
            return b"s" + value.encode(errors="surrogatepass")
        case int():
            return b"i%d" % value
        case float():
            return b"f" + _DOUBLE.pack(value)
        case dt.datetime() if value.tzinfo is not None:
            return b"m" + utc_moment(value).isoformat().encode()
        case dt.datetime() | dt.date() | dt.time():
            return b"t" + value.isoformat().encode()
        case dt.timedelta():
            return b"p%d" % (value // dt.timedelta(microseconds=1))
        case Decimal() | UUID():
            return b"d" + str(value).encode()
        case bytes() | bytearray() | memoryview():
            return b"b" + bytes(value)
        case dict() | list() | tuple():
            # By the encoder, which goes deeper into a document than functions could call themselves.
            written = json.dumps(value, default=lambda part: _packed(part).hex(), separators=(",", ":"))
            return b"j" + written.encode(errors="surrogatepass")
        case _:
            return b"x" + _text_of(value)


def _text_of(value: Any) -> bytes:
    """Return what a value of a driver's own type says of itself; nothing where that would be its address."""
    kind: Any = type(value)
    says_nothing = kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__
    return kind.__name__.encode() if says_nothing else str(value).encode(errors="surrogatepass")


def _folded(text: str) -> str:
    if text.isascii():
        return text.casefold().rstrip()
    plain = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in plain if not unicodedata.combining(letter)).rstrip()


def _digest_text(cursor: Any) -> str:
    return b64encode(_hash(_joined([cursor])).digest()).decode()
