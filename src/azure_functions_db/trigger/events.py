"""A change as the handler sees it, and its stable id, made of values in a byte form.

An id is the SHA-256, in hexadecimal, of the source's name and fingerprint, the operation, and what tells
the change from others: cursor and key, or ``1E`` and the position where a source hands out changes. The
parts are UTF-8, joined by the byte ``1F``. Users keep these ids in tables: the form of a value never changes.

=================  =====================================================================================
int, bool, None    decimal digits with a sign if negative; ``True``, ``False``, ``None``
float              the shortest decimal that reads back the same: ``0.1``, ``1e+16``, ``inf``, ``nan``
str                in quotes, `escaped`
bytes              ``b`` and in quotes, each byte that is not printable ASCII escaped
datetime           ten bytes in UTC (without a zone: as it is): year (2), month, day, hour, minute, second,
                   microsecond (3), big-endian
date, time         ``datetime.date(2026, 4, 7)``, ``datetime.time(1, 2)``; seconds and microseconds unless zero
Decimal, UUID      ``Decimal('1.50')``, ``UUID('12345678-1234-5678-1234-567812345678')``
a composite key    the forms of its values, joined by ``1F``
=================  =====================================================================================

Any other type, and a time with a zone, has the form in which Python shows it.
"""

from __future__ import annotations

import copy
import datetime as dt
import re
import struct
from bisect import bisect
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from uuid import UUID

from azure_functions_db.core.clocks import utc_moment
from azure_functions_db.core.serializers import json_safe
from azure_functions_db.core.speedups import speedups

try:
    # Python's own SHA-256 begins and ends in less time than OpenSSL's: 0.4 ms for 1,000 ids, as against 0.7.
    # From 3.12 on, which has no such module, OpenSSL's takes as little.
    from _sha256 import sha256  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    from hashlib import sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import NoReturn, Self

    from azure_functions_db.core.types import CursorPart, CursorValue, Operation, SourceDescriptor


_SEPARATOR: Final = b"\x1f"
_MOMENT: Final = struct.Struct(">HBBBBI").pack
_SHORT_ESCAPES: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\\": "\\\\"}


@dataclass(slots=True, eq=False)
class Identities:
    """The stable ids of the events of a batch, made all at once when the first is asked for."""

    _source: SourceDescriptor
    _operations: Sequence[str]
    _columns: tuple[list[Any], ...]
    """The values of all events by column: cursor, then key."""
    revisions: Mapping[int, str] = field(default_factory=dict)
    """What tells a change from an earlier one with the same cursor and key, by its place in the batch."""
    made: list[str] | None = None

    def make(self) -> list[str]:
        """Return a SHA-256 over source, operation, cursor and key for each change, in order."""
        prefix = f"{self._source.name}\x1f{self._source.fingerprint}"
        by_operation = {op: self._start(prefix, op) for op in set(self._operations)}
        if len(by_operation) == 1:  # as a rule, and in a tenth of the time
            starts = [*by_operation.values()] * len(self._operations)
        else:
            starts = list(map(by_operation.__getitem__, self._operations))
        self.made = self._ids(starts)
        for place, revision in self.revisions.items():
            forms = [self._form(column[place]) for column in self._columns]
            self.made[place] = sha256(starts[place] + _SEPARATOR.join([*forms, revision.encode()])).hexdigest()
        return self.made

    def _start(self, prefix: str, operation: str) -> bytes:
        return f"{prefix}\x1f{operation}\x1f".encode()

    def _form(self, value: Any) -> bytes:
        return byte_form(value)

    def _ids(self, starts: list[bytes]) -> list[str]:
        if speedups is not None:
            return speedups.ids(starts, self._columns, byte_form, _is_utc)
        cursors, *keys = self._columns
        tail, *others = [_bytes_of(key, _SEPARATOR) for key in keys]
        return _digests(starts, _bytes_of(cursors), map(b"".join, zip(tail, *others, strict=True)) if others else tail)


class PositionIdentities(Identities):
    """The stable ids of changes that have a position of their own: two changes of one row never share it."""

    def _start(self, prefix: str, operation: str) -> bytes:
        return super()._start(prefix, operation) + b"\x1e"

    def _form(self, value: str) -> bytes:
        return value.encode()

    def _ids(self, starts: list[bytes]) -> list[str]:
        positions = list(map(self._form, self._columns[0]))
        if speedups is not None:
            return speedups.ids(starts, (positions,), None, None)
        return _digests(starts, positions, [b""] * len(starts))


def _digests(starts: list[bytes], heads: Iterable[bytes], tails: Iterable[bytes]) -> list[str]:
    """Return the SHA-256 of each start, head and tail together, in hexadecimal."""
    copies = {start: sha256(start).copy for start in set(starts)}
    made = []
    # To hash a change in two parts takes less than to join them before.
    for begun, head, tail in zip(map(copies.__getitem__, starts), heads, tails, strict=True):
        digest = begun()
        digest.update(head)
        digest.update(tail)
        made.append(digest.hexdigest())
    return made


def _bytes_of(values: Sequence[Any], lead: bytes = b"") -> Iterable[bytes]:
    """Return the byte form of each value behind what leads it, quicker where they are all of a common kind."""
    kinds = set(map(type, values))
    if kinds == {int}:
        # All at once and then line by line takes a quarter less than one by one.
        line = lead + b"%d\n"
        return (line * len(values) % tuple(values)).splitlines()
    forms = _texts(values) if kinds == {str} else _moments(values) if kinds == {dt.datetime} else map(byte_form, values)
    return map(lead.__add__, forms) if lead else forms


def _moments(values: Sequence[dt.datetime]) -> Iterable[bytes]:
    if _IS_REDUCED_ALIKE:
        with suppress(ValueError):  # those with a zone have a second part
            return [state for _, (state,) in map(_reduced, values)]
    if not all(map(_is_utc, {value.tzinfo for value in values})):
        return map(_datetime, values)
    return [reduced[1][0] for reduced in map(_reduced, values)] if _IS_REDUCED_ALIKE else map(_moment, values)


def byte_form(value: Any) -> bytes:
    """Return bytes that are one for one with the value and do not depend on a session's time zone."""
    form = _FORMS.get(value.__class__)
    return repr(value).encode() if form is None else form(value)


def _datetime(value: dt.datetime) -> bytes:
    moment = value if _is_utc(value.tzinfo) else utc_moment(value)
    return _moment(moment) if _is_utc(moment.tzinfo) else moment.isoformat().encode()


def _moment(v: dt.datetime) -> bytes:
    return _MOMENT(v.year, v.month, v.day, v.hour, v.minute, v.second << 24 | v.microsecond)


# What a datetime is pickled to is three times as quick to get. It has been these very bytes since Python 2.3;
# should it ever be others, the ids stay what they are.
_reduced: Final[Callable[[dt.datetime], Any]] = dt.datetime.__reduce__
_IS_REDUCED_ALIKE: Final = all(
    _reduced(value)[1][0] == _moment(value)
    for value in (
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2026, 4, 7, 1, 2, 3, 66051, dt.UTC, fold=1),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999, dt.UTC),
    )
)


def _time(value: dt.time) -> bytes:
    if value.tzinfo is not None or value.fold:
        return repr(value).encode()
    parts = [value.hour, value.minute]
    if value.second or value.microsecond:
        parts.append(value.second)
    if value.microsecond:
        parts.append(value.microsecond)
    return f"datetime.time({', '.join(map(str, parts))})".encode()


def _is_utc(zone: dt.tzinfo | None) -> bool:
    """Tell whether times of this zone are what they are in UTC; those without a zone are left alone."""
    return zone is None or zone is dt.UTC or getattr(zone, "key", None) in {"UTC", "Etc/UTC"}


def _texts(values: Sequence[str]) -> Iterable[bytes]:
    if _special().search("".join(values)):
        return map(_text, values)
    # With nothing to escape in any of them, all are written at once.
    return ("'" + "'\n'".join(values) + "'").encode().split(b"\n")


def _text(value: str) -> bytes:
    if _special().search(value):
        return escaped(value, _unprintable()).encode()
    return b"'%b'" % value.encode()


def _binary(value: bytes) -> bytes:
    return b"b" + escaped(value.decode("latin-1"), _unprintable_in_ascii()).encode()


def escaped(text: str, unprintable: re.Pattern[str]) -> str:
    r"""Return a text in quotes: single ones, or double ones where it has single and no double ones.

    The quote and the backslash have a backslash before them; tab, line feed and carriage return are
    ``\t``, ``\n``, ``\r``; any other unprintable character is ``\xhh``, ``\uhhhh`` or ``\Uhhhhhhhh``.
    """
    quote = '"' if "'" in text and '"' not in text else "'"
    safe = unprintable.sub(_escape, text)
    return f"{quote}{safe.replace(quote, chr(92) + quote)}{quote}"


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    short = _SHORT_ESCAPES.get(character)
    if short is not None:
        return short
    code = ord(character)
    if code < 0x10000:
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    # An even number of ends lies before a run of printable ones.
    return f"\\U{code:08x}" if bisect(_run_ends(), code) % 2 == 0 else character


@cache
def _unprintable_in_ascii() -> re.Pattern[str]:
    return re.compile(r"[^ -\[\]-~]")


@cache
def _unprintable(besides: str = "") -> re.Pattern[str]:
    """Return what matches the backslash and each character that was not printable in Unicode 14, or is above U+FFFF.

    `_escape` tells the latter apart: a pattern of so many ranges there would be slow.
    """
    bounds = list(pairwise(_run_ends()))[1::2]
    ranges = "".join(f"{chr(first)}-{chr(end - 1)}" for first, end in bounds if end <= 0x10000)
    return re.compile(f"[\x00-\x1f\\\\\x7f{ranges}\U00010000-\U0010ffff{besides}]")


@cache
def _special() -> re.Pattern[str]:
    return _unprintable("'")


@cache
def _run_ends() -> list[int]:
    return list(accumulate((int(run, 36) for run in _RUNS.split()), initial=0x80))


_FORMS: Final[Mapping[type, Callable[[Any], bytes]]] = {
    int: b"%d".__mod__,
    bool: lambda value: b"True" if value else b"False",
    type(None): lambda _none: b"None",
    float: lambda value: float.__format__(value, "").encode(),
    str: _text,
    bytes: _binary,
    dt.datetime: _datetime,
    dt.date: lambda value: f"datetime.date({value.year}, {value.month}, {value.day})".encode(),
    dt.time: _time,
    Decimal: lambda value: f"Decimal('{value}')".encode(),
    UUID: lambda value: f"UUID('{value}')".encode(),
    tuple: lambda value: _SEPARATOR.join(map(byte_form, value)),
}

# Unicode grows, and with it what Python calls printable; ids must not. From U+0080 on: how many characters were
# printable in Unicode 14.0, how many after them were not, and so on, in base 36.
_RUNS: Final = (
    "0 x c 1 ju 2 6 4 7 1 1 1 k 1 b1 1 12 2 1e 2 3 1 1j 8 r 4 6 h m 1 5c 1 1c 2 1n 2 2t e 1n 2 1d 2 f 1 s 2 1 1 b 5 "
    "v 9 22 1 4h 1 8 2 2 2 m 1 7 1 1 3 4 2 9 2 2 2 4 8 1 4 2 1 5 2 p 2 3 1 6 4 2 2 m 1 7 1 2 1 2 1 2 2 1 1 5 4 2 2 "
    "3 3 1 7 4 1 1 7 h a 3 1 9 1 3 1 m 1 7 1 2 1 5 2 a 1 3 1 3 2 1 f 4 2 c 7 7 1 3 1 8 2 2 2 m 1 7 1 2 1 5 2 9 2 2 "
    "2 3 7 3 4 2 1 5 2 i a 2 1 6 3 3 1 4 3 2 1 1 1 2 3 2 3 3 3 c 4 5 3 3 1 4 2 1 6 1 e l 5 d 1 3 1 n 1 g 2 9 1 3 1 "
    "4 7 2 1 3 2 1 2 4 2 a 7 m 1 3 1 n 1 a 1 5 2 9 1 3 1 4 7 2 6 2 1 4 2 a 1 2 d d 1 3 1 1f 1 3 1 6 4 g 2 q 1 3 1 i "
    "3 o 1 9 1 1 2 7 3 1 4 6 1 1 1 8 6 a 2 3 c 1m 4 t 11 2 1 1 1 5 1 o 1 1 1 n 2 5 1 1 1 6 2 a 2 4 w 20 1 10 4 13 1 "
    "10 1 f 1 d 11 5i 1 1 5 1 2 ah 1 4 2 7 1 1 1 4 2 15 1 4 2 x 1 4 2 7 1 1 1 4 2 f 1 1l 1 4 2 1v 2 w 3 q 6 2e 2 6 "
    "2 hs 1 s 3 2h 7 m 9 o 9 k c d 1 3 1 2 c 2m 2 a 6 a 6 e 1 b 6 2h 7 17 5 1y a v 1 c 4 c 4 1 3 16 2 5 b 18 4 q 6 "
    "b 3 1q 2 1t 1 t 2 b 6 a 6 e 2 v 1d 25 3 1b 1 38 8 1o 3 f 3 1o 7 17 2 b 8 17 5 eu 2 6 2 12 2 6 2 8 1 1 1 1 1 1 "
    "1 v 2 1h 1 f 1 e 2 6 1 j 2 3 1 9 h o 8 1b h 2 2 r 1 d 3 x f x f 3w 4 if p b l 1ec 2 w 1 9p 5 19 1 1 5 1 2 1k 7 "
    "2 e o 9 7 1 7 1 7 1 7 1 7 1 7 1 7 1 7 1 3i y q 1 2h c 5y q c 5 1r 1 2e 2 2v 5 17 1 2m 1 2c c 1b 1 mlp 3 1j 9 "
    "9o k 54 8 5n 5 2 1 1 1 5 o 1n 3 a 6 1k 8 1y 8 c 6 38 b u 3 26 1 b 4 x 1 1j 9 e 2 a 2 2v o s a 6 2 6 2 6 9 7 1 "
    "7 1 1o 4 3i 2 a 6 8mc c n 4 1d 6is a6 2 2y 12 7 c 5 5 q 1 5 1 1 1 2 1 2 1 3h g cd 2 1i 7 1 w 16 6 1f 1 j 1 4 4 "
    "5 1 3r 4 5a 3 6 2 6 2 6 2 3 3 7 1 7 d 2 2 c 1 q 1 j 1 2 1 f 2 e y 3f 5 3 4 19 3 2g 1 d 3 1 1b 1a 3m t 3 1d f s "
    "4 10 9 u 5 17 5 u 1 11 4 e 16 4e 2 a 6 10 4 10 4 14 8 1g b c 1 f 1 7 1 2 1 b 1 f 1 7 1 2 1v 8n 9 m a 8 o 6 1 "
    "16 1 9 1x 6 2 1 1 18 1 2 3 1 2 n 1 20 8 9 1c j 1 2 5 x 3 r 5 1 1s 1k 4 k 2 1e 1 2 5 8 1 3 1 t 2 3 4 a 7 9 7 1s "
    "w 13 4 c 9 1i 3 t 2 r 5 q 7 4 c 7 28 21 1j 1f d 1f 7 1a 8 a 86 v 1 16 1 3 2 2 26 14 8 16 m q 12 s k n 9 26 4 "
    "10 9 1q 1 5 d p 7 a 6 1h 1 i 8 13 9 2o 1 k b i 1 18 1t 7 1 1 1 4 1 f 1 b 6 1n 5 a 6 4 1 8 2 2 2 m 1 7 1 2 1 5 "
    "1 a 2 2 2 3 2 1 6 1 5 7 2 7 3 5 3v 2k 1 5 u 20 8 a 4m 1i 2 12 y 1x b a 6 d j 1m 6 a 1i r 2 f 4 n 55 1o 2s 2b c "
    "8 2 1 2 8 1 2 1 u 1 2 2 c 9 a 1y 8 2 1a 2 b r 20 8 2b d 21 7b 9 1 19 1 e a t 3 w 2 m 1 e 21 7 1 2 1 18 3 1 1 2 "
    "1 9 8 a 6 6 1 2 1 11 1 2 1 6 7 a 8m p 53 1 f 1e d pn 2u 33 1 5 b 5g 218 2r d tr 34h g7 6nt ft 7 v 1 a 4 29 1 a "
    "6 u 2 6 a 1y a a 1 7 1 l 5 j j4 2j 2t 23 4 1l 7 h 1s 5 b 2 e 4qg 8 ye 16 9 6w7 4 1 7 1 2 1 83 19 3 h 4 8 b0 "
    "1s4 2z 5 d 3 9 7 a 2 4 3mo 1a 2 n 9 38 1o 6u a 13 2 22 8 34 l 1y 4a k c 2f 9 p 3r 2d 1 1z 1 2 2 1 2 2 2 4 1 c "
    "1 1 1 7 1 1t 1 4 2 8 1 7 1 s 1 4 1 5 1 1 3 7 1 9g 2 84 2 ji f 5 1 f uo v 69 7 1 h 2 7 1 2 1 5 5x 19 3 e 2 a 4 "
    "2 8w v h 1m 5 1 yo 7 1 4 1 2 1 f 1 5h 2 g 15 24 4 a 4 2 lt 1w 24 1p 5e 4 1 r 1 2 1 1 2 1 1 a 1 4 1 1 1 1 6 1 4 "
    "1 1 1 1 1 1 3 1 2 1 1 2 1 1 1 1 1 1 1 1 1 1 2 1 1 2 4 1 7 1 4 1 4 1 1 1 a 1 h 5 3 1 5 1 h 1g 2 7i 18 4 2s c f "
    "2 f 1 f 1 11 a 4u 1k t d 18 4 9 7 2 e 6 4a rc 5 g 3 d 3 38 c 2h 7 c 4 1 f c 4 1k 8 a 6 14 8 u 2 2 26 9g c e 2 "
    "5 3 5 3 7 9 t 3 b 5 6 a a 6 8 8 7 9 43 1 1j 11 a sm wyo w 37d 7 66 2 4g2 e 5rl 2e7 f2 15u 3t7 fcmt 6o 47bk "
)


_FIELDS: Final = ("event_id", "op", "source", "cursor", "pk", "before", "after", "metadata")
_CONTAINERS: Final = frozenset({dict, list, set})


class OpenRowChange:
    """A `RowChange` while its fields are being set.

    A frozen dataclass pays for each field twice over. Here the fields are set on this open form,
    whose class is then changed to the sealed one: events are made by the thousand.
    """

    __slots__ = ("_identities", "_index", "after", "before", "cursor", "metadata", "op", "pk", "source")

    _identities: Identities
    _index: int
    op: Operation
    source: SourceDescriptor
    cursor: CursorValue
    pk: Mapping[str, CursorPart]
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    metadata: Mapping[str, Any]


class RowChange(OpenRowChange):
    """One changed row: what happened, to which key, and the row as it now is.

    ``event_id`` is the same whenever the same change is delivered again: remember it to make a
    handler idempotent. Where none is given it is a SHA-256 over the source's name and
    fingerprint, the operation, the cursor and the key.
    """

    __slots__ = ()
    __match_args__ = _FIELDS

    def __new__(
        cls,
        event_id: str | None,
        op: Operation,
        source: SourceDescriptor,
        cursor: CursorValue,
        pk: Mapping[str, CursorPart],
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        columns = tuple([part] for part in (cursor, *(pk.values() or [()])))  # even where nobody knows the key
        made: Any = OpenRowChange()
        made._identities, made._index = Identities(source, [op], columns), 0  # noqa: SLF001 - made here
        made.op, made.source, made.cursor, made.pk = op, source, cursor, pk
        made.before, made.after, made.metadata = before, after, metadata or {}
        if event_id is not None:
            made._identities.made = [event_id]  # noqa: SLF001 - made here
        made.__class__ = cls
        return made  # type: ignore[no-any-return]

    def __init__(self, *_args: Any, **_fields: Any) -> None:
        """Keep the fields that `__new__` has set."""

    @property
    def event_id(self) -> str:
        """The stable id of this change."""
        identities = self._identities
        return (identities.made or identities.make())[self._index]

    def with_metadata(self, metadata: Mapping[str, Any]) -> RowChange:
        """Return the same change with other metadata."""
        return RowChange(self.event_id, self.op, self.source, self.cursor, self.pk, self.before, self.after, metadata)

    def with_revision(self, revision: str) -> RowChange:
        """Return the same change with the id of a later content; an id that was given stays."""
        self._identities.revisions = {self._index: revision}
        return self

    def with_own_rows(self) -> RowChange:
        """Return the same change with a copy of its rows: what is done to them does not show in this one."""
        twin: Any = OpenRowChange()
        twin._identities, twin._index = self._identities, self._index  # noqa: SLF001 - made here
        twin.op, twin.source, twin.cursor, twin.metadata = self.op, self.source, self.cursor, self.metadata
        twin.pk = self.pk.copy() if isinstance(self.pk, dict) else dict(self.pk)
        twin.before, twin.after = _copied(self.before), _copied(self.after)
        twin.__class__ = type(self)
        return twin  # type: ignore[no-any-return]

    def to_json(self) -> dict[str, Any]:
        """Return the change as JSON can hold it; ``schemas/row_change.json`` describes the form."""
        return {
            "event_id": self.event_id,
            "op": self.op,
            "source": {
                "name": self.source.name,
                "kind": self.source.kind,
                "fingerprint": self.source.fingerprint,
            },
            "cursor": json_safe(self.cursor),
            "pk": json_safe(self.pk),
            "before": json_safe(self.before),
            "after": json_safe(self.after),
            "metadata": json_safe(self.metadata),
        }

    def to_cloudevent(self) -> dict[str, Any]:
        """Return the change as a CloudEvents 1.0 event in its JSON form."""
        return _cloudevent_of(self)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"A RowChange is frozen: {name!r} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"A RowChange is frozen: {name!r} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowChange) and _values(self) == _values(other)

    def __hash__(self) -> int:
        return hash(self.event_id)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in _FIELDS)
        return f"RowChange({fields})"

    def __reduce__(self) -> tuple[Callable[..., RowChange], tuple[Any, ...]]:
        *fields, metadata = _values(self)
        # A trigger's metadata is a read-only view, which cannot be pickled itself.
        return _revived, (type(self), *fields, dict(metadata), isinstance(metadata, MappingProxyType))


def _id_without_frame(otherwise: property) -> property:
    """Return the property by which ids are read in half the time: without a frame for each event."""
    event, ids = vars(OpenRowChange), vars(Identities)
    read = speedups.lazy_item(event["_identities"], event["_index"], ids["made"], otherwise.fget)
    return property(read, doc=otherwise.__doc__)


_plain_event_id: Final = vars(RowChange)["event_id"]
if speedups is not None:
    setattr(RowChange, "event_id", _id_without_frame(_plain_event_id))  # noqa: B010 - types see the plain one


def _cloudevent_of(change: RowChange) -> dict[str, Any]:
    """Return the change as a CloudEvents JSON object; ``schemas/cloudevent.json`` describes it.

    The event's time is when the change happened where the cursor tells it, else when it was read.
    """
    event = {
        "specversion": "1.0",
        "id": change.event_id,
        "source": _source_of(change.source),
        "type": f"azure-functions-db.row.{change.op}",
        "subject": ",".join(f"{quote(name)}={quote(str(json_safe(value)))}" for name, value in change.pk.items()),
        "time": _time_of(change),
        "datacontenttype": "application/json",
        "data": change.to_json(),
    }
    return {name: value for name, value in event.items() if value}


@lru_cache(maxsize=128)
def _source_of(source: SourceDescriptor) -> str:
    return f"azure-functions-db/{quote(source.kind)}/{quote(source.name)}"


def _time_of(change: RowChange) -> str | None:
    for moment in (change.cursor, change.metadata.get("fetched_at")):
        # RFC 3339 wants an offset; a naive time would claim one that nobody knows.
        if isinstance(moment, dt.datetime) and moment.tzinfo is not None:
            return str(json_safe(moment))
    return None


def _revived(kind: type[RowChange], *values: Any) -> RowChange:
    """Return the event that was pickled or copied, its metadata as read-only as it was."""
    *fields, metadata, read_only = values
    return kind(*fields, MappingProxyType(metadata) if read_only else metadata)


def _copied(row: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    # A source's own kind of row is copied, too; a foreign one may be what it is only once.
    if not isinstance(row, dict) or (type(row) is not dict and not hasattr(row, "json_form")):
        return row
    if _CONTAINERS.isdisjoint(map(type, row.values())):
        return row.copy()
    try:
        return copy.deepcopy(row)
    except (RecursionError, TypeError):
        return _copied_deep(row)


def _copied_deep(row: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a row that is nested deeper than Python calls itself, or has values that cannot be copied."""
    copied = row.copy()
    waiting: list[Any] = [copied]
    while waiting:
        container = waiting.pop()
        for place, value in container.items() if isinstance(container, dict) else enumerate(container):
            if type(value) in _CONTAINERS:
                container[place] = value.copy()
                waiting.append(container[place])
    return copied


def _values(change: RowChange) -> tuple[Any, ...]:
    return tuple(getattr(change, name) for name in _FIELDS)
