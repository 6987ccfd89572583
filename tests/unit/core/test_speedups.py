"""The compiled loops do what Python does, value for value: whoever has no compiler gets the same."""

from __future__ import annotations

import datetime as dt
import gc
import hashlib
import shlex
import subprocess
import sys
import sysconfig
import weakref
from collections.abc import Callable
from functools import partial
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from azure_functions_db.core import _speedups, speedups
from azure_functions_db.core.types import Operation, SourceDescriptor
from azure_functions_db.sources.keyset import values
from azure_functions_db.sources.keyset.values import row_builder
from azure_functions_db.trigger.events import Identities, RowChange, _is_utc, byte_form
from azure_functions_db.trigger.normalizers import row_changes

SOURCE = SourceDescriptor("orders", "sqlalchemy", "sha256:0")
C_FILE = Path(speedups.__file__).with_name("_speedups.c")


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the module as processors without instructions for SHA-256 have it."""
    library = tmp_path_factory.mktemp("portable") / f"_speedups{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = f"-I{sysconfig.get_path('include')}"
    compiler = shlex.split(sysconfig.get_config_var("CC"))
    strict = ["-Wall", "-Wextra", "-Werror", "-std=c11"]
    flags = ["-DPORTABLE", *strict, "-O2", "-shared", "-fPIC", include]
    subprocess.run([*compiler, *flags, str(C_FILE), "-o", str(library)], check=True)
    loader = ExtensionFileLoader("_speedups", str(library))
    spec = spec_from_loader("_speedups", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_tests_run_with_the_compiled_loops() -> None:
    assert speedups.speedups is _speedups


@pytest.mark.parametrize("kind", ["by instructions", "portable"])
def test_digests_are_those_of_sha_256(kind: str, portable: Any) -> None:
    ids = portable.ids if kind == "portable" else _speedups.ids
    text = bytes(range(256)) * 2
    starts, heads, tails = [], [], []
    for length in range(300):  # every way to end a block, and to begin the next
        starts += [text[: length // 3], text[:length], b""]
        heads += [text[length // 3 : length // 2], b"", text[:length]]
        tails += [text[length // 2 : length], b"", b""]
    wholes = [start + head + b"\x1f" + tail for start, head, tail in zip(starts, heads, tails, strict=True)]
    assert ids(starts, (heads, tails), None, None) == [hashlib.sha256(whole).hexdigest() for whole in wholes]
    assert ids(starts, (), None, None) == [hashlib.sha256(start).hexdigest() for start in starts]


_MOMENTS = st.datetimes() | st.datetimes(timezones=st.timezones())
_VALUES = st.text("a'\"\\\n\x7f é") | st.integers() | _MOMENTS | st.none() | st.booleans() | st.floats() | st.binary()


@given(st.lists(_VALUES))
def test_what_is_hashed_are_the_byte_forms_of_python(given_values: list[Any]) -> None:
    starts = [b"start "] * len(given_values)
    wholes = [b"start " + byte_form(value) + b"\x1f" + byte_form(value) for value in given_values]
    made = _speedups.ids(starts, (given_values, list(given_values)), byte_form, _is_utc)
    assert made == [hashlib.sha256(whole).hexdigest() for whole in wholes]


@pytest.mark.parametrize("emptied", ["starts", "values"])
def test_a_form_that_takes_the_values_away_does_no_harm(emptied: str) -> None:
    lists: dict[str, list[Any]] = {"starts": [b"", b""], "values": [1.5, 2.5]}

    def form(value: float) -> bytes:
        lists[emptied].clear()
        return repr(value).encode()

    with pytest.raises(RuntimeError, match="shorter"):
        _speedups.ids(lists["starts"], (lists["values"],), form, _is_utc)


class Row(dict[str, Any]):
    """A record of a source's own kind."""

    def __missing__(self, name: str) -> str:
        return f"no {name}"


def test_a_column_is_what_the_records_say() -> None:
    records: list[Any] = [{"a": 1, "b": 2}, Row(), MappingProxyType({"a": 3})]
    assert _speedups.column("a", records) == [1, "no a", 3]
    assert _speedups.column("a", []) == []
    with pytest.raises(KeyError, match="'b'"):
        _speedups.column("b", records)
    with pytest.raises(KeyError, match="'c'"):
        _speedups.column("c", [{"b": 2}])


def test_a_record_that_takes_the_others_away_does_no_harm() -> None:
    class Taking(Row):
        def __missing__(self, name: str) -> str:
            records.clear()
            return name

    records: list[Any] = [Taking(), Taking()]
    with pytest.raises(RuntimeError, match="shorter"):
        _speedups.column("a", records)


def test_each_value_gets_a_dict_of_its_own() -> None:
    values: list[Any] = [1, None, [2]]
    made = _speedups.singles("a", values)
    assert made == [{"a": 1}, {"a": None}, {"a": [2]}]
    made[0]["a"] = 5
    assert values == [1, None, [2]]


_TEXTS = st.none() | st.integers(-5, 5) | st.text("01-:. TZab", max_size=8) | st.datetimes().map(str)


@given(st.lists(st.tuples(_TEXTS, _TEXTS, _TEXTS, _TEXTS)))
def test_records_are_those_of_generated_code(rows: list[tuple[Any, ...]]) -> None:
    from sqlalchemy.engine import processors

    converters = [None, processors.int_to_boolean, str, processors.str_to_datetime]
    assert _outcome(row_builder(["a", "b", "c"], converters[:3], 1), rows) == _plain(["a", "b", "c"], converters, rows)
    names = ["a", "b", "c", "d"]
    assert _outcome(row_builder(names, converters), rows) == _plain(names, converters, rows)


def _plain(names: list[str], converters: list[Any], rows: list[tuple[Any, ...]]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "speedups", None)
        return _outcome(row_builder(names, converters[: len(names)], 4 - len(names)), rows)


def _outcome(build: Callable[[Any], Any], rows: Any) -> Any:
    try:
        return build(rows)
    except Exception as error:  # noqa: BLE001 - both must fail alike
        return type(error), str(error)


def test_rows_of_any_kind_become_records() -> None:
    build = row_builder(["a", "b"], [None, str])
    assert build([(1, None), [2, 3]]) == [{"a": 1, "b": "None"}, {"a": 2, "b": "3"}]
    assert build(()) == []
    for stranger in [(1,), (1, 2, 3)]:
        with pytest.raises(ValueError, match="values"):
            build([(1, 2), stranger])


def test_only_rows_with_containers_are_left_to_the_garbage_collector() -> None:
    plain, holding = tuple([1, "text"]), tuple([1, ["a list"]])  # noqa: C409 - a literal would be a constant
    row_builder(["a", "b"], [None, None])([plain, holding])
    assert (gc.is_tracked(plain), gc.is_tracked(holding)) == (False, True)


def test_objects_are_kept_from_the_collector_and_those_that_are_held_given_back() -> None:
    objects: list[Any] = [[1], [2], 3, "text"]
    held = objects[0]
    _speedups.untrack_all(objects)
    _speedups.untrack_all(objects)
    assert [gc.is_tracked(each) for each in objects] == [False] * 4
    for _ in range(2):
        _speedups.track_held(objects)
    assert (gc.is_tracked(held), gc.is_tracked(objects.pop(1))) == (True, False)
    for function in (_speedups.untrack_all, _speedups.track_held):
        with pytest.raises(TypeError, match="takes a list"):
            function(([],))  # type: ignore[arg-type]


def test_a_converter_that_takes_the_rows_away_does_no_harm() -> None:
    rows = [(1,), (2,), (3,)]

    def convert(value: int) -> int:
        rows.clear()
        return value

    assert row_builder(["a"], [convert])(rows) == [{"a": 1}, {"a": 2}, {"a": 3}]


class Slotted:
    __slots__ = ("a", "b")
    shared = 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), TypeError),
        ((Slotted,), TypeError),
        ((Slotted, {}), TypeError),
        ((Slotted(), {"a": [1]}), TypeError),
        ((Slotted, {"a": (1,)}), TypeError),
        ((Slotted, {"a": [1], "b": [1, 2]}), TypeError),
        ((Slotted, {"shared": [1]}), TypeError),
        ((Slotted, {"__class__": [1]}), TypeError),
        ((Slotted, {"c": [1]}), AttributeError),
        ((int, {"real": [1]}), TypeError),
        ((Slotted, {f"s{i}": [1] for i in range(17)}), TypeError),
    ],
)
def test_what_is_no_slot_is_refused(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        _speedups.instances(*arguments)


@pytest.mark.parametrize(
    "call",
    [
        lambda: _speedups.ids([b""], ([b""],)),  # type: ignore[call-arg]
        lambda: _speedups.ids([b""], [[b""]], None, None),  # type: ignore[arg-type]
        lambda: _speedups.ids((b"",), ([b""],), None, None),  # type: ignore[arg-type]
        lambda: _speedups.ids([b""], ([b""], []), None, None),
        lambda: _speedups.ids([b""], ((b"",),), None, None),  # type: ignore[arg-type]
        lambda: _speedups.ids([b""], ([""],), None, None),
        lambda: _speedups.ids([bytearray()], ([b""],), None, None),  # type: ignore[list-item]
        lambda: _speedups.ids([b""], ([1.5],), str, _is_utc),  # type: ignore[arg-type]
        lambda: _speedups.ids([b""], ([dt.datetime.now(dt.UTC)],), byte_form, None),
        lambda: _speedups.column("a", ({},)),  # type: ignore[arg-type]
        lambda: _speedups.column(1, [{}]),  # type: ignore[arg-type]
        lambda: _speedups.column("a", [1]),
        lambda: _speedups.singles("a", (1,)),  # type: ignore[arg-type]
        lambda: _speedups.singles("a"),  # type: ignore[call-arg]
        lambda: _speedups.records({"a": None}, ("a",), (), 1, [(1,)]),
        lambda: _speedups.records({"a": None}, ("a",), (None,), "1", [(1,)]),  # type: ignore[arg-type]
        lambda: _speedups.records({"a": None}, ("a",), (None,), 1, [1]),
        lambda: _speedups.records({"a": None}, ("a",), (1,), 1, [(1,)]),  # type: ignore[arg-type]
        lambda: _speedups.values((None,)),  # type: ignore[call-arg]
        lambda: _speedups.values([None], b"\0"),  # type: ignore[arg-type]
        lambda: _speedups.values((None,), bytearray(b"\0")),  # type: ignore[arg-type]
        lambda: _speedups.values((1,), b"\0"),  # type: ignore[arg-type]
    ],
)
def test_strange_arguments_are_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError):
        call()


class Greedy:
    """Garbage that takes a list's items away when it is collected."""

    def __init__(self, items: list[Any]) -> None:
        self.items, self.itself = items, self

    def __del__(self) -> None:
        self.items.clear()


def test_a_collection_that_takes_the_values_away_does_no_harm() -> None:
    values = [[number] for number in range(1_000)]
    before = gc.get_threshold()
    gc.collect()
    Greedy(values)
    gc.set_threshold(100)
    try:
        with pytest.raises(RuntimeError, match="shorter"):
            _speedups.singles("a", values)
    finally:
        gc.set_threshold(*before)


class Held:
    __slots__ = ("items",)

    items: Any


class Holding:
    __slots__ = ("held", "index")

    held: Held
    index: Any


SLOTS: dict[str, Any] = {**vars(Holding), **vars(Held)}


def _holding(index: Any, items: Any = None) -> Holding:
    holding = Holding()
    holding.index, holding.held = index, Held()
    if items is not None:
        holding.held.items = items
    return holding


def test_an_item_that_is_there_is_taken_and_any_other_asked_for() -> None:
    asked: list[Any] = []
    item = _speedups.lazy_item(SLOTS["held"], SLOTS["index"], SLOTS["items"], asked.append)
    assert [item(_holding(index, ["a", "b"])) for index in (0, 1)] == ["a", "b"]
    assert not asked
    others = [_holding(2, ["a"]), _holding(-1, ["a"]), _holding(10**30, ["a"]), _holding("0", ["a"]), _holding(0)]
    strangers = [_holding(0, ("a",)), Holding(), Held(), 1]
    for other in [*others, *strangers]:
        assert item(other) is None
    assert asked == [*others, *strangers]


@pytest.mark.parametrize("place", range(3))
def test_an_item_is_looked_for_in_slots_only(place: int) -> None:
    slots = [SLOTS["held"], SLOTS["index"], SLOTS["items"], print]
    slots[place] = RowChange.event_id
    with pytest.raises(TypeError, match="three slots"):
        _speedups.lazy_item(*slots)
    with pytest.raises(TypeError, match="three slots"):
        _speedups.lazy_item(*slots[:3])


def _used() -> list[Any]:
    """Return objects whose references can be counted: none of them is shared by the interpreter."""
    moment, key, text = dt.datetime(2026, 4, 7, tzinfo=dt.UTC), 10**6, f"{10**6}'"
    return [moment, key, text, 1.5 * key, b"".join([b"a", b"b"]), {"id": key}]


def _events(used: list[Any]) -> list[RowChange]:
    """Return an event for each, which is all that it is about."""
    ops: list[Operation] = ["upsert"] * len(used)
    identities = Identities(SOURCE, ops, (used, used))
    return row_changes(identities, SOURCE, ops=ops, cursors=used, pks=used, befores=used, afters=used, metadata=used)


def _fails(_value: Any) -> Any:
    raise ArithmeticError


@pytest.mark.parametrize("convert", [None, lambda value: value, _fails])
def test_every_reference_is_given_back(convert: Callable[[Any], Any] | None) -> None:
    used = _used()
    form = b"".join([b"a", b"form"])
    starts = [form] * len(used)
    before = [sys.getrefcount(one) for one in [*used, form]]
    for _ in range(100):
        assert len({event.event_id for event in _events(used)}) == len(used)
        names = [str(place) for place in range(len(used))]
        _outcome(row_builder(names, [convert] * len(used)), [tuple(used), tuple(used)])
        _outcome(lambda rows: _speedups.ids(starts, (rows,), _fails, _is_utc), list(used))
        _speedups.ids(starts, (list(used),), lambda _value: form, _is_utc)
        singles = _speedups.singles("a", used)
        assert _speedups.column("a", [*singles, *map(Row, singles)]) == used * 2
        _outcome(lambda records: _speedups.column("b", records), [*singles])
        for packet in (b"\1a\1b", b"\1a\1b\xfb", b"\1a\2b"):
            _outcome(partial(_speedups.values, (lambda _value: form, convert)), packet)
        del singles
    assert [sys.getrefcount(one) for one in [*used, form]] == before


class Tracked:
    """Something that can be seen to go."""


def test_an_event_that_is_in_its_own_row_is_collected() -> None:
    row: dict[str, Any] = {"id": 1, "seen": Tracked()}
    gone = weakref.ref(row["seen"])
    row["event"] = _events([row])
    del row
    gc.collect()
    assert gone() is None


def test_an_event_is_as_frozen_as_one_that_was_called_for() -> None:
    [event] = _events([{"id": 1}])
    assert event == RowChange(
        event.event_id, "upsert", SOURCE, event.cursor, {"id": 1}, {"id": 1}, {"id": 1}, {"id": 1}
    )
    with pytest.raises(AttributeError, match="frozen"):
        event.op = "delete"
