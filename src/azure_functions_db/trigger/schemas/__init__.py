"""The JSON schemas of what leaves this library."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, Literal


def json_schema(name: Literal["row_change", "cloudevent"]) -> dict[str, Any]:
    """Return a schema: of `RowChange.to_json()`, or of `RowChange.to_cloudevent()`."""
    return dict(json.loads(files(__name__).joinpath(f"{name}.json").read_text("utf-8")))
