"""Whatever others have put in the place of a document or an entry: one error says so, and nothing else happens."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from azure_functions_db import quarantine
from azure_functions_db.core.errors import StateStoreError
from azure_functions_db.core.types import QuarantinedRow
from azure_functions_db.state.document import (
    Document,
    acquired,
    broken,
    decoded,
    encoded,
    is_abandoned,
    is_free,
    is_held,
    lease_conflict,
    lease_id_of,
    released,
    salvaged,
)
from azure_functions_db.trigger.batch import Checkpoint

T = TypeVar("T")
NOW = dt.datetime(2026, 4, 7, 12, tzinfo=dt.UTC)
STAMP = "2026-04-07T11:59:30Z"
DOCUMENT: dict[str, Any] = {
    "version": 1,
    "poller_name": "orders",
    "source_fingerprint": "sha256:f00",
    "checkpoint": {
        "cursor": {"kind": "integer+pk", "value": 1, "tiebreaker": {"id": 2}},
        "last_successful_batch_id": "batch_1",
        "updated_at": STAMP,
        "metadata": {
            "row_count": 4,
            "rows_per_second": 0.5,
            "failed_attempts": 0,
            "ticked_at": STAMP,
            "failure": {
                "attempts": 2,
                "error_type": "ValueError",
                "error": "no stock",
                "since": STAMP,
                "last_at": STAMP,
                "batch": {"id": "batch_2", "rows": 3, "first": "50 (id=5)"},
            },
        },
    },
    "lease": {
        "owner_id": "host/1-ab",
        "fencing_token": 7,
        "acquired_at": STAMP,
        "heartbeat_at": STAMP,
        "expires_at": "2026-04-07T12:01:30Z",
    },
    "paused": {"by": "ann@desk", "at": STAMP, "why": None},
}
ROW = QuarantinedRow(
    poller_name="orders",
    event_id="e1",
    event={"pk": {"id": 1}},
    error_type="ValueError",
    error="cannot digest",
    attempts=3,
    batch_id="batch_1",
    quarantined_at=NOW,
)

odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -1, 0, 2**63, 1e308, "9999-12-31T23:59:59Z", "0001-01-01T00:00:00-14:00", STAMP, ""]),
    st.floats(),
    st.text(),
    st.datetimes(timezones=st.none() | st.just(dt.UTC)).map(dt.datetime.isoformat),
)
values = st.recursive(odd, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


def paths_in(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    inner = value.items() if isinstance(value, dict) else ()
    return [path, *(deeper for name, part in inner for deeper in paths_in(part, (*path, name)))]


def with_part(value: Any, path: tuple[str, ...], part: Any) -> Any:
    if not path:
        return part
    return {**value, path[0]: with_part(value[path[0]], path[1:], part)}


@st.composite
def changed(draw: st.DrawFn, original: dict[str, Any]) -> bytes:
    """The original with one part that somebody else has written."""
    path = draw(st.sampled_from(paths_in(original)))
    return json.dumps(with_part(original, path, draw(values))).encode()


def attempted(read: Callable[[], T]) -> tuple[StateStoreError | None, T | None]:
    """Return what was read, or the one error that reading may end in."""
    try:
        return None, read()
    except StateStoreError as refusal:
        return refusal, None


def use(document: Document) -> None:
    """Do to a document what a tick, a status and an operator do."""
    is_free(document, NOW)
    is_abandoned(document)
    lease_conflict(document)
    checkpoint = Checkpoint.of(document.checkpoint)
    assert checkpoint.failed_attempts >= 0
    checkpoint.after(Checkpoint(), "batch", dt.datetime.fromisoformat(STAMP), 5)
    assert checkpoint.ticked_at is None or checkpoint.ticked_at.tzinfo is not None
    failed = checkpoint.failed_with(ValueError("no stock"), NOW, None).failure
    assert failed is not None
    assert failed.attempts == (1 if checkpoint.failure is None else checkpoint.failure.attempts + 1)
    assert document.paused is None or document.paused.by
    if document.lease is not None:
        is_held(document, lease_id_of(document.lease), NOW)
        released(document, lease_id_of(document.lease), NOW)
    decoded(encoded(broken(document, NOW)), "orders")
    decoded(encoded(acquired(document, "me", NOW, 60, take_over=True)), "orders")


@given(
    st.one_of(changed(DOCUMENT), st.binary(), st.text().map(str.encode), values.map(lambda v: json.dumps(v).encode()))
)
@example(b"[" * 100_000)
@example(b'{"version": 1e999}')
@example("\ufeff{}".encode("utf-16"))
def test_a_document_is_usable_or_refused_and_always_something_can_be_saved(content: bytes) -> None:
    refusal, document = attempted(lambda: decoded(content, "orders"))
    assert document or (refusal and refusal.poller_name == "orders" and len(str(refusal)) < 1000)
    use(document or salvaged(content, "orders", NOW))


@given(st.one_of(changed(json.loads(quarantine.encoded(ROW))), st.binary(), values.map(json.dumps)))
@example("[" * 100_000)
def test_an_entry_is_a_row_or_refused(content: str | bytes) -> None:
    refusal, row = attempted(lambda: quarantine.decoded(content, "somewhere", quarantine.is_at("orders/e1.json")))
    assert row or str(refusal).startswith("somewhere is ")
    if row:
        assert (row.poller_name, row.event_id) == ("orders", "e1")
        assert quarantine.oldest_first([row, ROW])
        assert quarantine.encoded(row)


def test_of_a_broken_document_the_position_is_kept() -> None:
    for path in [("lease",), ("lease", "fencing_token"), ("checkpoint", "metadata"), ("source_fingerprint",)]:
        content = json.dumps(with_part(DOCUMENT, path, ["nonsense"])).encode()
        saved = salvaged(content, "orders", NOW)
        assert saved.checkpoint["cursor"] == DOCUMENT["checkpoint"]["cursor"]
        assert saved.lease is not None
        assert saved.lease.fencing_token >= 7


@pytest.mark.parametrize("part", [{"poller_name": "payments"}, {"version": 99}])
def test_the_position_of_something_else_is_not(part: dict[str, Any]) -> None:
    assert salvaged(json.dumps(DOCUMENT | part).encode(), "orders", NOW).checkpoint == {}
