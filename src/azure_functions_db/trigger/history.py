"""What a poller did, minute by minute for an hour and hour by hour for a week, beside its checkpoint.

It is written with commits that happen anyway, so it costs no request. Two texts, newest slot first: each slot is the
number of its minute or hour since 1970 and the counters of a `Sample`, in hexadecimal. A text is quick to carry from
one commit to the next: only its first slot is ever read again, and JSON has one value to write.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# More than a worker does in an hour; a slot stays short whatever is counted.
_MOST: Final = 16**8 - 1


@dataclass(frozen=True, slots=True)
class Sample:
    """What was done in a stretch of time, added up."""

    rows: int = 0
    batches: int = 0
    failures: int = 0
    """Ticks that failed."""
    fetch_ms: int = 0
    handler_ms: int = 0
    commit_ms: int = 0
    lag_seconds: int | None = None
    """At the end of it, where the source can tell."""


# With each batch: `dataclasses.astuple` takes ten times as long.
_counters: Final = attrgetter(*(counter.name for counter in fields(Sample)))


@dataclass(frozen=True, slots=True)
class Tier:
    """A row of slots of one length."""

    name: str
    seconds: int
    slots: int
    longest: int
    """Of its text: what is oldest goes when numbers are large."""


MINUTES: Final = Tier("minutes", 60, 60, 2_000)
HOURS: Final = Tier("hours", 3600, 168, 5_800)
_TIERS: Final = (MINUTES, HOURS)


def noted(history: object, at: dt.datetime, sample: Sample) -> dict[str, str]:
    """Return the history with a sample added to the present minute and hour; one that cannot be read begins anew."""
    texts: Mapping[Any, Any] = history if isinstance(history, dict) else {}
    seconds, counters = int(at.timestamp()), _counters(sample)
    return {tier.name: _with(tier, texts.get(tier.name), [seconds // tier.seconds, *counters]) for tier in _TIERS}


def samples(history: object, tier: Tier) -> list[tuple[dt.datetime, Sample]]:
    """Return the slots of a tier that something was noted in, the oldest first; what cannot be read is left out."""
    text = history.get(tier.name) if isinstance(history, dict) else None
    read = [_read(slot) for slot in text.split(";")[: tier.slots]] if isinstance(text, str) else []
    found = {
        number: Sample(*counters)
        for number, *counters in filter(None, read)
        if 0 < number * tier.seconds < _END_OF_TIME
    }
    return [(dt.datetime.fromtimestamp(number * tier.seconds, dt.UTC), found[number]) for number in sorted(found)]


_END_OF_TIME: Final = dt.datetime(9999, 1, 1, tzinfo=dt.UTC).timestamp()


# A slot is a list of its number, the counters and the lag while it is added to: with each batch, which makes no sample.
_Slot = list[Any]


def _with(tier: Tier, text: object, slot: _Slot) -> str:
    newest, _, older = text.partition(";") if isinstance(text, str) else ("", "", "")
    last = _read(newest)
    if last is None:
        return _written(slot)
    if last[0] >= slot[0]:  # a clock that went back goes on in the slot that is there
        return _cut(tier, f"{_written(_sum(last, slot))};{older}")
    return _cut(tier, f"{_written(slot)};{newest};{older}")


def _cut(tier: Tier, text: str) -> str:
    if len(text) > tier.longest:
        text = text[: text.rindex(";", 0, tier.longest)]
    if text.count(";") >= tier.slots:
        text = ";".join(text.split(";")[: tier.slots])
    return text.rstrip(";")


def _sum(slot: _Slot, younger: _Slot) -> _Slot:
    """Return both together, in the place of the first."""
    number, *counted, lag = slot
    _, *more, newer = younger
    sums = [min(_MOST, one + two) for one, two in zip(counted, more, strict=True)]
    return [number, *sums, lag if newer is None else min(_MOST, newer)]


def _read(text: str) -> _Slot | None:
    """Return a slot, None for what is none."""
    try:
        number, *counters, lag = text.split(",")
        slot = [int(number, 16), *[int(counter, 16) for counter in counters], int(lag, 16) if lag else None]
        return slot if len(slot) == _PARTS else None
    except ValueError:
        return None


def _written(slot: _Slot) -> str:
    return ",".join(["" if value is None else f"{max(0, value):x}" for value in slot])


_PARTS: Final = 1 + len(fields(Sample))
