"""What happened, as frozen facts in the past tense; observers listen to them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A fact about one poller."""

    poller_name: str
