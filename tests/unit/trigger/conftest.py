from __future__ import annotations

import pytest

from azure_functions_db.trigger import events, normalizers


@pytest.fixture(params=["compiled", "plain"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything be shown with the compiled loops, and without."""
    if request.param == "plain":
        monkeypatch.setattr(events, "speedups", None)
        monkeypatch.setattr(events.RowChange, "event_id", events._plain_event_id)
        monkeypatch.setattr(normalizers, "speedups", None)
