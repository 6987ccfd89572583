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
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
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
    digests = portable.digests if kind == "portable" else _speedups.digests
    text = bytes(range(256)) * 2
    starts, heads, tails = [], [], []
    for length in range(300):  # every way to end a block, and to begin the next
        starts += [text[: length // 3], text[:length], b""]
        heads += [text[length // 3 : length // 2], b"", text[:length]]
        tails += [text[length // 2 : length], b"", b""]
    joined = map(b"".join, zip(starts, heads, tails, strict=True))
    assert digests(starts, heads, tails) == [hashlib.sha256(whole).hexdigest() for whole in joined]


_MOMENTS = st.datetimes() | st.datetimes(timezones=st.timezones())
_VALUES = st.text("a'\"\\\n\x7f é") | st.integers() | _MOMENTS | st.none() | st.booleans() | st.floats() | st.binary()


@given(st.lists(_VALUES), st.binary(max_size=2))
def test_byte_forms_are_those_of_python(given_values: list[Any], lead: bytes) -> None:
    forms = [lead + byte_form(value) for value in given_values]
    assert _speedups.byte_forms(given_values, lead, byte_form, _is_utc) == forms


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


def _outcome(build: Callable[[Any], Any], rows: list[tuple[Any, ...]]) -> Any:
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
        lambda: _speedups.digests([b""], [b""]),  # type: ignore[call-arg]
        lambda: _speedups.digests([b""], [b""], []),
        lambda: _speedups.digests([b""], [b""], [""]),  # type: ignore[list-item]
        lambda: _speedups.digests([bytearray()], [b""], [b""]),  # type: ignore[list-item]
        lambda: _speedups.byte_forms((1,), b"", byte_form, _is_utc),  # type: ignore[arg-type]
        lambda: _speedups.byte_forms([1.5], b"", str, _is_utc),  # type: ignore[arg-type]
        lambda: _speedups.byte_forms([dt.datetime.now(dt.UTC)], b"", byte_form, None),  # type: ignore[arg-type]
        lambda: _speedups.records({"a": None}, ("a",), (), 1, [(1,)]),
        lambda: _speedups.records({"a": None}, ("a",), (None,), "1", [(1,)]),  # type: ignore[arg-type]
        lambda: _speedups.records({"a": None}, ("a",), (None,), 1, [1]),
        lambda: _speedups.records({"a": None}, ("a",), (1,), 1, [(1,)]),  # type: ignore[arg-type]
    ],
)
def test_strange_arguments_are_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError):
        call()


def _used() -> list[Any]:
    """Return objects whose references can be counted: none of them is shared by the interpreter."""
    moment, key, text = dt.datetime(2026, 4, 7, tzinfo=dt.UTC), 10**6, f"{10**6}'"
    return [moment, key, text, 1.5 * key, b"".join([b"a", b"b"]), {"id": key}]


def _events(used: list[Any]) -> list[RowChange]:
    """Return an event for each, which is all that it is about."""
    ops: list[Operation] = ["upsert"] * len(used)
    identities = Identities(SOURCE, ops, used, used)
    return row_changes(identities, SOURCE, ops=ops, cursors=used, pks=used, befores=used, afters=used, metadata=used)


def _fails(_value: Any) -> Any:
    raise ArithmeticError


@pytest.mark.parametrize("convert", [None, lambda value: value, _fails])
def test_every_reference_is_given_back(convert: Callable[[Any], Any] | None) -> None:
    used = _used()
    form = b"".join([b"a", b"form"])
    before = [sys.getrefcount(one) for one in [*used, form]]
    for _ in range(100):
        assert len({event.event_id for event in _events(used)}) == len(used)
        names = [str(place) for place in range(len(used))]
        _outcome(row_builder(names, [convert] * len(used)), [tuple(used), tuple(used)])
        _outcome(lambda rows: _speedups.byte_forms(rows, b"", _fails, _is_utc), list(used))
        _speedups.byte_forms(list(used), b"", lambda _value: form, _is_utc)
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
