"""When a timer fires: NCRONTAB expressions and time spans, as the Functions host reads them."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Protocol

from azure_functions_db.core.errors import ConfigurationError

_SPAN = re.compile(r"(?:(?P<days>\d+)\.)?(?P<first>\d{1,2}):(?P<second>\d{1,2})(?::(?P<third>\d{1,2}))?")


class Schedule(Protocol):
    """Tells when a timer fires next."""

    def after(self, moment: dt.datetime) -> dt.datetime:
        """Return the first occurrence later than a moment."""


@dataclass(frozen=True, slots=True)
class Cron:
    """Six fields, from seconds to days of the week; five are read as starting at second 0."""

    expression: str

    def after(self, moment: dt.datetime) -> dt.datetime:
        """Return the first matching second after a moment."""
        from cronsim import CronSim

        times = CronSim(self.expression, moment)
        # Unlike crontab, NCRONTAB wants the day of the month and the day of the week both to match.
        times.day_and = True
        try:
            return next(times)
        except StopIteration:
            raise ConfigurationError(f"The schedule {self.expression!r} never comes round") from None


@dataclass(frozen=True, slots=True)
class Interval:
    """The same time between two ticks."""

    length: dt.timedelta

    def after(self, moment: dt.datetime) -> dt.datetime:
        """Return the moment one interval later."""
        return moment + self.length


def parsed_schedule(text: str) -> Schedule:
    """Return the schedule that a timer trigger was given."""
    if span := _SPAN.fullmatch(text.strip()):
        return Interval(_length(span, text))
    from cronsim import CronSim, CronSimError

    try:
        CronSim(text, dt.datetime(2000, 1, 1, tzinfo=dt.UTC))
    except CronSimError as error:
        raise ConfigurationError(
            f"The schedule {text!r} is neither an NCRONTAB expression (second minute hour day month weekday) "
            f"nor a time span (hh:mm:ss): {error}"
        ) from None
    return Cron(text)


def _length(span: re.Match[str], text: str) -> dt.timedelta:
    days, first, second, third = (int(span[name] or 0) for name in ("days", "first", "second", "third"))
    if first >= 24:
        # .NET reads 24:00:00 as 24 days, so the host does: the fields are then days, hours, minutes.
        length = dt.timedelta(days=days + first, hours=second, minutes=third)
    else:
        length = dt.timedelta(days=days, hours=first, minutes=second, seconds=third)
    if not length:
        raise ConfigurationError(f"The time span {text!r} is no time at all")
    return length
