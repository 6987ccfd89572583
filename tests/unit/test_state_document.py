"""The state document: its JSON form, what is refused, and which changes are allowed."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from azure_functions_db.core.errors import (
    ConfigurationError,
    FingerprintMismatchError,
    LeaseConflictError,
    LostLeaseError,
    StateStoreError,
)
from azure_functions_db.state.document import (
    Document,
    acquired,
    as_dict,
    broken,
    committed,
    committed_alone,
    decoded,
    encoded,
    identified,
    is_abandoned,
    is_free,
    lease_conflict,
    lost_lease,
    lost_race,
    noted,
    released,
    renewed,
    salvaged,
)

NOW = dt.datetime(2026, 4, 7, 1, 23, 45, 123456, tzinfo=dt.UTC)
POSITION = {"cursor": {"kind": "integer+pk", "value": 1, "tiebreaker": {"id": 2}}}

WRITTEN: dict[str, Any] = {
    "version": 1,
    "poller_name": "orders",
    "source_fingerprint": "sha256:f00",
    "checkpoint": POSITION,
    "lease": {
        "owner_id": "funcapp/instance-abc",
        "fencing_token": 42,
        "acquired_at": "2026-04-07T01:23:45.123456Z",
        "heartbeat_at": "2026-04-07T01:23:45.123456Z",
        "expires_at": "2026-04-07T01:24:45.123456Z",
    },
}


def written(**changes: Any) -> bytes:
    kept = {name: value for name, value in (WRITTEN | changes).items() if value is not ...}
    return json.dumps(kept).encode()


def lease(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in (WRITTEN["lease"] | changes).items() if value is not ...}


def test_the_json_form_is_the_documented_one() -> None:
    document = Document("orders", POSITION, None, "sha256:f00")
    taken = acquired(document, "funcapp/instance-abc", NOW, 60)
    assert json.loads(encoded(taken)) == WRITTEN | {"lease": lease(fencing_token=1)}


def test_a_document_survives_writing_and_reading() -> None:
    document = decoded(written(), "orders")
    assert as_dict(document) == WRITTEN
    assert decoded(encoded(document), "orders") == document


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (written()[:-20], "is not JSON, perhaps cut short"),
        (b"\xff\xfe\x00garbage", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "is a JSON list instead of an object"),
        (b"null", "is a JSON NoneType"),
        (b"{}", "has no version"),
        (written(version=...), "has no version"),
        (written(version=99), "is of version 99"),
        (written(version=True), "is of version True"),
        (written(version="1"), "is of version '1'"),
        (written(poller_name="invoices"), "belongs to the poller 'invoices'"),
        (written(poller_name=...), "belongs to the poller None"),
        (written(checkpoint=...), "has no checkpoint"),
        (written(checkpoint=None), "has a checkpoint that is no object"),
        (written(checkpoint=[1]), "has a checkpoint that is no object"),
        (written(checkpoint={"last_successful_batch_id": "b", "metadata": {}}), "no position"),
        (
            written(checkpoint=dict.fromkeys(("last_successful_batch_id", "updated_at", "metadata", "horizon"), "b")),
            "no position",
        ),
        (written(source_fingerprint=5), "source_fingerprint that is no text"),
        (written(lease=...), "has no lease entry"),
        (written(lease={}), "without owner_id or fencing_token"),
        (written(lease="me"), "without owner_id or fencing_token"),
        (written(lease=lease(owner_id=...)), "without owner_id or fencing_token"),
        (written(lease=lease(fencing_token="42")), "without owner_id or fencing_token"),
        (written(lease=lease(fencing_token=0)), "without owner_id or fencing_token"),
        (written(lease=lease(fencing_token=-3)), "without owner_id or fencing_token"),
        (written(lease=lease(fencing_token=True)), "without owner_id or fencing_token"),
        (written(lease=lease(fencing_token=4.0)), "without owner_id or fencing_token"),
        (written(lease=lease(fencing_token=10**400)), "without owner_id or fencing_token"),
        (written(lease=lease(owner_id="two\nlines")), "without owner_id or fencing_token"),
        (written(lease=lease(owner_id="\ud800")), "without owner_id or fencing_token"),
        (written(lease=lease(expires_at="9999-12-31T23:59:59Z")), "expires_at is no timestamp that a clock could show"),
        (written(lease=lease(acquired_at="0001-01-01T00:00:00+14:00")), "acquired_at is no timestamp"),
        (written(lease=lease(expires_at=253402300799)), "expires_at is no timestamp"),
        (written().replace(b'"value": 1', b'"value": 1e999'), "a number beyond what a float can hold"),
        (written().replace(b'"value": 1', b'"value": NaN'), "NaN is no JSON number"),
        (written().replace(b'"value": 1', b'"value": ' + b"9" * 5000), "is not JSON"),
        (written().replace(b'"value": 1', b'"value": ' + b"[" * 900 + b"]" * 900), "nested too deeply"),
        (b'{"version": ' + b"[" * 49 + b"]" * 49 + b"}", "is of version a list"),
        (written(version=1.0), "is of version 1.0"),
        (written(poller_name="x" * 5000), "xxxxx…"),
        (written(checkpoint=POSITION | {"metadata": [1]}), "metadata is no object"),
        (written(checkpoint=POSITION | {"metadata": {"failed_attempts": "3"}}), "failed_attempts is no number"),
        (written(checkpoint=POSITION | {"metadata": {"failed_attempts": -1}}), "failed_attempts is no number"),
        (written(checkpoint=POSITION | {"metadata": {"rows_per_second": 10**400}}), "rows_per_second is no number"),
        (written(checkpoint=POSITION | {"updated_at": "2026-04-07T01:23:45"}), "updated_at has no time zone"),
        (written(checkpoint=POSITION | {"updated_at": [2026]}), "updated_at is no timestamp"),
        (written(lease=lease(expires_at=...)), "expires_at is no timestamp"),
        (written(lease=lease(heartbeat_at="yesterday")), "heartbeat_at is no timestamp"),
        (written(lease=lease(acquired_at="2026-04-07T01:23:45")), "acquired_at has no time zone"),
        (written(paused=True), "has a pause that does not say by whom and why"),
        (written(paused={"by": 5, "why": None, "at": "2026-04-07T01:23:45Z"}), "does not say by whom and why"),
        (written(paused={"by": "ann", "why": None, "at": "yesterday"}), "has a pause whose at is no timestamp"),
    ],
)
def test_what_is_no_document_is_refused_with_the_reason(content: bytes, complaint: str) -> None:
    with pytest.raises(StateStoreError, match="Nothing was overwritten") as refused:
        decoded(content, "orders")
    assert complaint in str(refused.value)
    assert refused.value.poller_name == "orders"


def test_what_can_be_read_of_a_broken_document_is_kept_and_the_rest_is_nobodys() -> None:
    paused = {"by": "ann", "why": None, "at": "2026-04-07T01:23:45.123456Z"}
    whole = decoded(written(paused=paused), "orders")
    later = NOW + dt.timedelta(days=1)
    assert salvaged(written(paused=paused, source_fingerprint=5), "orders", later) == replace(
        whole, source_fingerprint=None
    )
    assert salvaged(written(paused=True), "orders", later) == decoded(written(), "orders")
    assert salvaged(written(checkpoint=None), "orders", later).checkpoint == {}
    noted_wrongly = POSITION | {"metadata": {"failed_attempts": -1}}
    assert salvaged(written(checkpoint=noted_wrongly), "orders", later).checkpoint == POSITION
    counted = POSITION | {"metadata": {"failed_attempts": 3}}
    assert salvaged(written(checkpoint=counted, lease=None), "orders", later).checkpoint == counted
    for content in (written(lease={}), b"garbage"):
        unheld = salvaged(content, "orders", later)
        assert unheld.lease is not None
        assert unheld.lease.fencing_token == int(later.timestamp())
        assert is_free(unheld, later)


def test_a_checkpoint_without_a_batch_may_lack_a_position() -> None:
    # A first batch that keeps failing has attempts to remember and no position yet.
    attempts = {"metadata": {"attempts": 3}}
    assert decoded(written(checkpoint=attempts), "orders").checkpoint == attempts


def test_a_checkpoint_that_json_cannot_hold_is_refused() -> None:
    taken = acquired(Document("orders"), "a", NOW, 60)
    for value in (float("nan"), object(), {1, 2}):
        with pytest.raises(StateStoreError, match="cannot be written as JSON") as refused:
            encoded(Document("orders", {"cursor": value}))
        assert refused.value.poller_name == "orders"
        with pytest.raises(StateStoreError, match="cannot be written as JSON"):
            committed(taken, "a:1", NOW, {"cursor": value})


def test_an_empty_fingerprint_binds_a_document_to_nothing() -> None:
    assert decoded(written(source_fingerprint=""), "orders").source_fingerprint is None


def test_the_margin_is_a_quarter_of_a_short_ttl() -> None:
    taken = acquired(Document("orders"), "a", NOW, 4)
    assert not is_free(taken, NOW + dt.timedelta(seconds=4.999))
    assert is_free(taken, NOW + dt.timedelta(seconds=5))
    assert committed(taken, "a:1", NOW + dt.timedelta(seconds=2.999), POSITION).checkpoint == POSITION
    with pytest.raises(LostLeaseError):
        committed(taken, "a:1", NOW + dt.timedelta(seconds=3), POSITION)


def test_a_release_keeps_the_token_and_says_so_in_the_json() -> None:
    later = NOW + dt.timedelta(seconds=20)
    freed = released(acquired(Document("orders"), "a", NOW, 60), "a:1", later)
    reread = decoded(encoded(freed), "orders")
    assert reread.lease is not None
    assert reread.lease.fencing_token == 1
    assert is_free(reread, later)


def test_a_released_lease_stays_released_when_the_clock_is_set_back() -> None:
    freed = released(acquired(Document("orders"), "a", NOW, 60), "a:1", NOW)
    for earlier in (NOW, NOW - dt.timedelta(seconds=30)):
        with pytest.raises(LostLeaseError):
            committed(freed, "a:1", earlier, POSITION)


def test_a_lease_is_neither_renewed_nor_committed_under_another_id() -> None:
    taken = acquired(Document("orders"), "a", NOW, 60)
    for stranger in ("b:1", "a:2", "a:0", "a", ""):
        with pytest.raises(LostLeaseError):
            committed(taken, stranger, NOW, POSITION)
        with pytest.raises(LostLeaseError):
            renewed(taken, stranger, NOW, 60)
        with pytest.raises(LostLeaseError):
            released(taken, stranger, NOW)


def test_a_commit_with_nobody_beside_it_moves_the_checkpoint_and_pushes_the_expiry_even_late() -> None:
    late = NOW + dt.timedelta(hours=1)
    taken = acquired(Document("orders"), "a", NOW, 60)
    moved = committed_alone(taken, "a:1", late, POSITION)
    assert moved.checkpoint == POSITION
    assert moved.lease is not None
    assert (moved.lease.heartbeat_at, moved.lease.expires_at) == (late, late + dt.timedelta(seconds=60))
    for other in (acquired(taken, "b", late, 60), released(taken, "a:1", NOW)):
        with pytest.raises(LostLeaseError):
            committed_alone(other, "a:1", late, POSITION)


def test_nothing_is_noted_beside_a_checkpoint_while_somebody_is_at_work() -> None:
    taken = acquired(Document("orders"), "a", NOW, 60)
    with pytest.raises(LeaseConflictError):
        noted(taken, NOW, POSITION)
    assert noted(released(taken, "a:1", NOW), NOW, POSITION).checkpoint == POSITION


def test_a_lease_is_abandoned_when_it_was_not_given_back() -> None:
    taken = acquired(Document("orders"), "a", NOW, 60)
    assert is_abandoned(taken)
    assert not is_abandoned(released(taken, "a:1", NOW))


def test_errors_about_a_lease_say_whose_it_is() -> None:
    for told in (lease_conflict(Document("orders")), lost_race("orders"), lost_lease("orders")):
        assert told.poller_name == "orders"
    assert lease_conflict(Document("orders")).owner_id is None


def test_a_renewal_lasts_a_full_ttl_from_its_moment() -> None:
    later = NOW + dt.timedelta(seconds=20)
    kept = renewed(acquired(Document("orders"), "a", NOW, 60), "a:1", later, 30).lease
    assert kept is not None
    assert (kept.acquired_at, kept.heartbeat_at, kept.expires_at) == (NOW, later, later + dt.timedelta(seconds=30))


def test_a_lease_that_was_never_taken_is_nobodys() -> None:
    untaken = Document("orders")
    acts: list[Callable[[], Document]] = [
        lambda: committed(untaken, "a:1", NOW, POSITION),
        lambda: committed_alone(untaken, "a:1", NOW, POSITION),
        lambda: renewed(untaken, "a:1", NOW, 60),
        lambda: released(untaken, "a:1", NOW),
    ]
    for act in acts:
        with pytest.raises(LostLeaseError):
            act()
    assert broken(untaken, NOW) == untaken
    assert not is_abandoned(untaken)


def test_a_released_lease_is_free_however_far_ahead_its_holders_clock_was() -> None:
    ahead = NOW + dt.timedelta(hours=1)
    freed = released(acquired(Document("orders"), "a", ahead, 60), "a:1", ahead)
    assert is_free(freed, NOW)


def test_whoever_asks_without_a_fingerprint_gets_the_document_as_it_is() -> None:
    bound = decoded(written(), "orders")
    assert identified(bound, None) is bound
    assert identified(bound, "sha256:f00") is bound
    assert identified(replace(bound, source_fingerprint=None), "sha256:f00") == bound
    with pytest.raises(FingerprintMismatchError, match="--adopt-fingerprint") as refused:
        identified(bound, "sha256:bar")
    assert (refused.value.poller_name, refused.value.stored, refused.value.current) == (
        "orders",
        "sha256:f00",
        "sha256:bar",
    )
    with pytest.raises(StateStoreError, match="no text"):
        identified(bound, 5)  # type: ignore[arg-type]


def test_a_broken_lease_is_free_and_its_holder_out() -> None:
    later = NOW + dt.timedelta(seconds=20)
    freed = broken(acquired(Document("orders"), "a", NOW, 60), later)
    assert is_free(freed, later)
    with pytest.raises(LostLeaseError):
        committed(freed, "a:1", NOW, POSITION)
    retaken = acquired(freed, "b", later, 60)
    assert retaken.lease is not None
    assert retaken.lease.fencing_token == 3


def test_a_lease_that_is_known_to_be_nobodys_is_taken_over_at_once() -> None:
    retaken = acquired(acquired(Document("orders"), "a", NOW, 60), "a", NOW, 60, take_over=True).lease
    assert retaken is not None
    assert retaken.fencing_token == 2


def test_the_conflict_names_the_holder() -> None:
    taken = acquired(Document("orders"), "funcapp/instance-abc", NOW, 60)
    with pytest.raises(LeaseConflictError, match="funcapp/instance-abc") as refused:
        acquired(taken, "b", NOW, 60)
    assert refused.value.owner_id == "funcapp/instance-abc"


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf")])
def test_a_lease_needs_a_time_to_live(ttl: float) -> None:
    with pytest.raises(ConfigurationError):
        acquired(Document("orders"), "a", NOW, ttl)


def test_a_lease_may_be_shorter_than_a_second() -> None:
    taken = acquired(Document("orders"), "a", NOW, 0.5).lease
    assert taken is not None
    assert taken.expires_at - taken.heartbeat_at == dt.timedelta(seconds=0.5)


def test_a_ttl_beyond_the_calendar_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="centuries"):
        acquired(Document("orders"), "a", NOW, 10**11)


def test_the_last_token_that_can_be_read_is_not_counted_on() -> None:
    last = decoded(written(lease=lease(fencing_token=2**63 - 1)), "orders")
    with pytest.raises(StateStoreError, match="nothing can follow"):
        acquired(last, "a", NOW + dt.timedelta(days=1), 60)


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


# Of 50 levels, the document and the checkpoint are two.
@pytest.mark.parametrize("depth", [1, 40, 47])
def test_a_committed_checkpoint_can_be_read_again(depth: int) -> None:
    taken = acquired(Document("orders"), "a", NOW, 60)
    moved = committed(taken, "a:1", NOW, {"cursor": nested(depth)})
    assert decoded(encoded(moved), "orders") == moved


@pytest.mark.parametrize("depth", [48, 60, 10_000])
def test_a_checkpoint_that_is_nested_too_deeply_is_not_committed(depth: int) -> None:
    taken = acquired(Document("orders"), "a", NOW, 60)
    with pytest.raises(StateStoreError):
        committed(taken, "a:1", NOW, {"cursor": nested(depth)})
    if depth < 100:
        with pytest.raises(StateStoreError, match="nested too deeply"):
            decoded(encoded(replace(taken, checkpoint={"cursor": nested(depth)})), "orders")
