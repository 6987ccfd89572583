"""What a poller is given is checked when it is made, and the refusal says what would do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.types import AdapterCapability
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.trigger.poll import PollTrigger
from tests.unit.trigger.poller import FullSource, ListSource


class Scanner(ListSource, FullSource):
    """A source that looks at its whole table each time."""

    fetch_changes: Any = None

    def capability(self) -> AdapterCapability:
        return replace(AdapterCapability(), scans=True)


def trigger(*, name: Any = "orders", source: Any = None, **options: Any) -> PollTrigger:
    return PollTrigger(name=name, source=source or ListSource(), checkpoint_store=MemoryStateStore(), **options)


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"batchsize": 5}, r"A trigger has no option 'batchsize'; it has: normalizer, .*did you mean 'batch_size'\?"),
        ({"quarantine": []}, "quarantine= was given a list, which has no put"),
        ({"name": None}, "A poller needs a name"),
        ({"name": " "}, "A poller needs a name"),
        ({"name": "x" * 201}, "poller name"),
        ({"batch_size": True}, "batch_size must be a whole number of at least 1"),
        ({"max_attempts": 0}, "max_attempts must be a whole number of at least 1"),
        ({"lease_ttl_seconds": 0}, "lease_ttl_seconds must be greater than 0"),
        ({"commit": "rows"}, "commit= is 'batch' or 'row', not 'rows'"),
        ({"model": dict}, "model= takes a Pydantic model class"),
        ({"source": Scanner(), "linger_seconds": 10}, "linger_seconds= would have a Scanner compare its whole table"),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ConfigurationError, match=refusal):
        trigger(**given)


@pytest.mark.parametrize(
    "given", [{"source": Scanner()}, {"linger_seconds": 10}, {"commit": "row", "quarantine": None, "batch_size": 1}]
)
def test_what_can_work_is_taken(given: dict[str, Any]) -> None:
    settings = trigger(**given).settings
    assert (settings.name, settings.consumer) == ("orders", "orders")
