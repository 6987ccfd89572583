from __future__ import annotations

import copy
import datetime as dt
import json
import pickle
from collections.abc import Iterator, Mapping
from decimal import Decimal
from importlib.resources import files
from types import MappingProxyType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from referencing import Registry, Resource

from azure_functions_db.core.errors import ConfigurationError, SerializationError
from azure_functions_db.core.types import SourceDescriptor
from azure_functions_db.sources.mongo.log import Document
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.trigger.events import RowChange
from azure_functions_db.trigger.normalizers import RecordNormalizer, normalized, normalizer_for
from azure_functions_db.trigger.retry import RetryPolicy
from tests.unit.trigger.poller import Collected, ListSource, poller, run

SOURCE = SourceDescriptor("orders", "sqlalchemy", "sha256:abc")
NOON = dt.datetime(2026, 4, 7, 12, 0, 0, 123456, tzinfo=dt.UTC)


def change(**fields: Any) -> RowChange:
    defaults: dict[str, Any] = {
        "event_id": None,
        "op": "upsert",
        "source": SOURCE,
        "cursor": NOON,
        "pk": {"id": 1},
        "after": {"id": 1, "at": NOON},
    }
    return RowChange(**(defaults | fields))


def json_schema(name: str) -> Any:
    return json.loads(files("azure_functions_db.trigger").joinpath("schemas", f"{name}.json").read_text("utf-8"))


def validate(name: str, value: Any) -> None:
    schemas = [json_schema("row_change"), json_schema("cloudevent")]
    registry = Registry().with_resources((schema["$id"], Resource.from_contents(schema)) for schema in schemas)
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.Draft202012Validator(json_schema(name), registry=registry, format_checker=checker).validate(
        json.loads(json.dumps(value, allow_nan=False))
    )


def test_the_id_is_known_for_good() -> None:
    # Processed tables hold such ids: they must never change.
    assert change().event_id == "44d423071bb9211ebf2b43d5525cdc96c9dcd860275c33e6ec203dc6970d0543"


@pytest.mark.parametrize(
    "other",
    [
        {"op": "delete"},
        {"cursor": NOON + dt.timedelta(microseconds=1)},
        {"pk": {"id": 2}},
        {"pk": {"id": "1"}},
        {"pk": {"id": 1, "line": 1}},
        {"source": SourceDescriptor("other", "sqlalchemy", "sha256:abc")},
        {"source": SourceDescriptor("orders", "sqlalchemy", "sha256:other")},
    ],
)
def test_the_id_differs_with_all_that_makes_a_change(other: dict[str, Any]) -> None:
    assert change(**other).event_id != change().event_id


def test_the_id_does_not_depend_on_what_a_redelivery_may_change() -> None:
    same = {
        "cursor": NOON.astimezone(ZoneInfo("Asia/Kathmandu")),
        "after": {"id": 1, "at": None},
        "metadata": {"attempt": 2},
    }
    assert change(**same).event_id == change().event_id


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.one_of(st.integers(), st.text(), st.binary(), st.booleans(), st.decimals()), min_size=2, max_size=2))
def test_different_keys_have_different_ids(keys: list[Any]) -> None:
    first, second = (change(pk={"key": key}).event_id for key in keys)
    assert (first == second) == (repr(keys[0]) == repr(keys[1]))


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("key", [7, "x", NOON, Decimal("1.10"), UUID(int=7), b"x", None, 1.5, True])
def test_a_key_of_any_type_gives_one_id_however_the_event_was_made(key: Any) -> None:
    by_hand = change(pk={"id": key})
    [by_normalizer] = RecordNormalizer("at", ["id"]).batch([{"id": key, "at": NOON}], SOURCE, {})
    assert by_normalizer.pk == by_hand.pk
    assert by_normalizer.event_id == by_hand.event_id


@pytest.mark.parametrize("zone", ["UTC", "Etc/UTC", "Europe/Berlin", "America/St_Johns"])
def test_a_time_has_one_id_in_every_zone(zone: str) -> None:
    for moment in (NOON, NOON.replace(month=12), NOON.replace(year=1950)):
        there = moment.astimezone(ZoneInfo(zone))
        assert change(cursor=there).event_id == change(cursor=moment).event_id


def test_a_time_in_a_key_does_not_depend_on_the_sessions_zone() -> None:
    there = NOON.astimezone(ZoneInfo("Asia/Kathmandu"))
    assert change(pk={"at": there}).event_id == change(pk={"at": NOON}).event_id


def test_an_event_is_frozen_and_a_value() -> None:
    event = change()
    for name in ("op", "event_id", "after", "anything"):
        with pytest.raises(AttributeError, match=name):
            setattr(event, name, "x")
        with pytest.raises(AttributeError, match=name):
            delattr(event, name)
    assert event == change()
    assert event != change(metadata={"attempt": 2})
    assert len({event, change()}) == 1
    assert pickle.loads(pickle.dumps(event)) == event
    assert copy.deepcopy(event) == event
    assert "op='upsert'" in repr(event)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("attempts", [1, 2])
def test_events_that_a_trigger_hands_out_can_be_pickled_and_copied(attempts: int) -> None:
    handed: list[RowChange] = []

    def handler(events: list[RowChange]) -> None:
        handed[:] = events
        if handed[0].metadata["attempt"] < attempts:
            raise RuntimeError("once more")

    run(poller(ListSource(3), retry_policy=RetryPolicy(max_attempts=attempts)), handler)
    pickled = [pickle.loads(pickle.dumps(handed, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    for copies in (*pickled, copy.deepcopy(handed), list(map(copy.copy, handed))):
        assert copies == handed
        assert [event.event_id for event in copies] == [event.event_id for event in handed]
        assert copies[0].metadata["attempt"] == attempts
        with pytest.raises(TypeError):
            copies[0].metadata["attempt"] = 7
        with pytest.raises(AttributeError, match="frozen"):
            copies[0].op = "delete"
    deep: list[Any] = copy.deepcopy(handed)
    deep[0].after["id"] = "changed"
    assert handed[0].after == {"id": 0, "version": 0}


def test_an_event_is_no_other_thing() -> None:
    assert change() != "e1"
    assert change() != 1


def test_a_pickled_event_has_metadata_of_its_own_kind() -> None:
    assert type(pickle.loads(pickle.dumps(change(metadata={"batch_id": "b"}))).metadata) is dict


@pytest.mark.parametrize("cursor", [7, NOON.replace(tzinfo=None), "2026-04-07"])
def test_a_cloudevent_happened_when_it_was_read_where_its_cursor_tells_no_moment(cursor: Any) -> None:
    read_at = change(cursor=cursor, metadata={"fetched_at": NOON}).to_cloudevent()
    assert read_at["time"] == "2026-04-07T12:00:00.123456Z"
    assert "time" not in change(cursor=cursor).to_cloudevent()
    assert "subject" not in change(pk={}).to_cloudevent(), "nobody knows of what"


def test_an_event_can_be_taken_apart_by_a_match() -> None:
    match change(op="delete"):
        case RowChange(op="delete", pk={"id": key}):
            assert key == 1
        case _:
            pytest.fail("no match")


values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.binary(),
        st.decimals(),
        st.uuids(),
        st.datetimes(timezones=st.just(dt.UTC)),
        st.dates(),
        st.times(),
        st.timedeltas(),
    ),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=5,
)


@settings(deadline=None)  # a busy machine is no failure
@given(
    st.sampled_from(["insert", "update", "upsert", "delete", "unknown"]),
    st.dictionaries(st.text(), values),
    st.one_of(st.integers(), st.decimals(allow_nan=False), st.datetimes(), st.binary(), st.text()),
)
def test_every_event_fits_its_schemas(op: Any, row: dict[str, Any], cursor: Any) -> None:
    event = change(op=op, after=row, before=None, cursor=cursor, metadata={"fetched_at": NOON, "attempt": 1})
    validate("row_change", event.to_json())
    validate("cloudevent", event.to_cloudevent())


def test_the_json_forms_are_what_other_systems_read() -> None:
    row = {"at": NOON, "price": Decimal("1.10"), "key": UUID(int=7), "blob": b"\x00\xff"}
    written = change(after=row).to_json()
    assert written["after"] == {
        "at": "2026-04-07T12:00:00.123456Z",
        "price": "1.10",
        "key": "00000000-0000-0000-0000-000000000007",
        "blob": "AP8=",
    }
    event = change(pk={"id": 1, "line": "a,b"}).to_cloudevent()
    assert event["type"] == "azure-functions-db.row.upsert"
    assert event["source"] == "azure-functions-db/sqlalchemy/orders"
    assert event["subject"] == "id=1,line=a%2Cb"
    assert event["time"] == "2026-04-07T12:00:00.123456Z"


def test_the_schemas_refuse_what_is_no_event() -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate("row_change", {**change().to_json(), "op": "merge"})
    with pytest.raises(jsonschema.ValidationError):
        validate("cloudevent", {**change().to_cloudevent(), "data": {}})


def operations(rows: list[dict[str, Any]], **columns: Any) -> list[str]:
    normalizer = RecordNormalizer("updated", ["id"], **columns)
    return [event.op for event in normalizer.batch(rows, SOURCE, {})]


def test_the_operation_follows_from_the_columns() -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "updated": 5, "created": 5, "deleted": None},
        {"id": 2, "updated": 6, "created": 5, "deleted": False},
        {"id": 3, "updated": 7, "created": 7, "deleted": NOON},
    ]
    assert operations(rows) == ["upsert", "upsert", "upsert"]
    assert operations(rows, created_column="created") == ["insert", "update", "insert"]
    assert operations(rows, deleted_column="deleted") == ["upsert", "upsert", "delete"]
    assert operations(rows, created_column="created", deleted_column="deleted") == ["insert", "update", "delete"]


@pytest.mark.usefixtures("loops")
def test_a_handler_may_take_the_row_apart() -> None:
    rows: list[dict[str, Any]] = [{"id": 1, "line": 2, "at": NOON}]
    [untouched] = RecordNormalizer("at", ["id", "line"]).batch([dict(rows[0])], SOURCE, {})
    [event] = RecordNormalizer("at", ["id", "line"]).batch(rows, SOURCE, {})
    rows[0].clear()
    assert event.pk == {"id": 1, "line": 2}
    assert event.cursor == NOON
    event.pk.clear()  # type: ignore[attr-defined]
    assert event.event_id == untouched.event_id


class Foreign(dict[str, Any]):
    """A row of somebody else's own kind."""


class Key(Mapping[str, Any]):
    """A key that is nothing but a mapping."""

    def __getitem__(self, name: str) -> int:
        return {"id": 1}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("id",))

    def __len__(self) -> int:
        return 1


class TestRowsOfOnesOwn:
    @pytest.mark.parametrize("kind", [dict, Document])
    @pytest.mark.parametrize("odd", ["plain", "deep", "uncopyable"])
    def test_what_is_done_to_a_row_stays_with_who_does_it(self, kind: type[dict[str, Any]], odd: str) -> None:
        nested: list[Any] = []
        for _ in range(10_000 if odd == "deep" else 1):
            nested = [nested]
        row = kind(id=1, nested=nested, document={"lines": [{"sku": "a"}]}, tags={"new"})
        if odd == "uncopyable":
            row["file"] = memoryview(b"content")
        own: Any = change(after=row).with_own_rows().after
        assert type(own) is kind
        own["document"]["lines"][0]["sku"] = "b"
        own["document"]["more"] = True
        own["tags"].add("old")
        own["id"] = 2
        assert (row["id"], row["document"], row["tags"]) == (1, {"lines": [{"sku": "a"}]}, {"new"})

    def test_nothing_that_a_handler_cannot_change_is_copied(self) -> None:
        content = memoryview(b"content")
        own: Any = change(after={"file": content}).with_own_rows().after
        assert own["file"] is content

    def test_a_foreign_row_stays_what_it_is(self) -> None:
        foreign = Foreign(id=1)
        assert change(after=foreign).with_own_rows().after is foreign

    def test_a_key_stays_of_its_kind_or_becomes_a_dict(self) -> None:
        own = change(pk=Document(id=1)).with_own_rows().pk
        assert (own, type(own)) == ({"id": 1}, Document)
        assert change(pk=Key()).with_own_rows().pk == {"id": 1}


@pytest.mark.usefixtures("loops")
def test_a_single_key_column_may_be_given_by_its_name() -> None:
    [event] = RecordNormalizer("at", "id").batch([{"id": 1, "at": NOON}], SOURCE, {})
    assert event.pk == {"id": 1}
    assert event.event_id == change().event_id


@pytest.mark.usefixtures("loops")
def test_metadata_tells_batch_attempt_and_time() -> None:
    handler = Collected()
    run(poller(ListSource(2)), handler)
    first, second = handler.batches[0]
    assert set(first.metadata) >= {"batch_id", "attempt", "fetched_at"}
    assert first.metadata is second.metadata, "one mapping serves the whole batch"
    with pytest.raises(TypeError):
        first.metadata["attempt"] = 7


@pytest.mark.usefixtures("loops")
def test_a_custom_normalizer_makes_the_events_and_the_position() -> None:
    class Bare:
        source_descriptor = SourceDescriptor("bare", "list", "sha256:b")

        def __init__(self) -> None:
            self.cursors: list[Any] = []

        def fetch(self, cursor: Any, _batch_size: int) -> list[dict[str, Any]]:
            self.cursors.append(cursor)
            return [] if cursor else [{"n": 4, "who": "x"}]

    def normalize(record: dict[str, Any], source: SourceDescriptor) -> RowChange:
        return RowChange(None, "insert", source, record["n"], {"who": record["who"]}, metadata={"own": True})

    source, handler, store = Bare(), Collected(), MemoryStateStore()
    for _ in range(2):
        run(poller(source, store, normalizer=normalize), handler)
    assert source.cursors == [None, 4], "what the normalizer calls the cursor is where the source goes on"
    [[event]] = handler.batches
    assert event.op == "insert"
    assert event.metadata["own"]
    assert event.metadata["attempt"] == 1


@pytest.mark.usefixtures("loops")
def test_a_source_without_columns_needs_a_normalizer() -> None:
    with pytest.raises(ConfigurationError, match="normalizer"):
        normalizer_for(object(), None)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("made", [None, {"id": 1}, ValueError("odd")])
def test_a_normalizer_that_fails_is_a_serialization_error(made: Any) -> None:
    def normalize(_record: Any, _source: Any) -> Any:
        if isinstance(made, Exception):
            raise made
        return made

    with pytest.raises(SerializationError):
        normalized(normalize, [{"id": 1}], SOURCE, MappingProxyType({}))


@pytest.mark.usefixtures("loops")
def test_a_revision_makes_another_id_of_the_same_change_and_leaves_its_neighbours_alone() -> None:
    rows = [{"id": 1, "at": NOON}, {"id": 2, "at": NOON}]
    plain = normalized(RecordNormalizer("at", "id"), rows, SOURCE, {})
    revised = normalized(RecordNormalizer("at", "id"), rows, SOURCE, {}, {1: "later"})
    assert revised[0].event_id == plain[0].event_id
    assert revised[1].event_id != plain[1].event_id


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize(("given", "stays"), [(None, False), ("mine", True)])
def test_a_revision_reaches_the_events_of_ones_own_normalizer_unless_they_have_an_id(
    given: str | None, stays: bool
) -> None:
    def normalize(record: dict[str, Any], source: SourceDescriptor, /) -> RowChange:
        return RowChange(given, "upsert", source, record["at"], {"id": record["id"]})

    [plain] = normalized(normalize, [{"id": 1, "at": NOON}], SOURCE, {})
    [revised] = normalized(normalize, [{"id": 1, "at": NOON}], SOURCE, {}, {0: "later"})
    assert (revised.event_id == plain.event_id) is stays
