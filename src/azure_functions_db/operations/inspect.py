"""A poller's state document, readable or not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import StateStoreError

if TYPE_CHECKING:
    from azure_functions_db.operations.pollers import Poller


@dataclass(frozen=True, slots=True)
class Inspection:
    """A poller's document, or what is there in its place and what is wrong with it."""

    poller: str
    document: dict[str, Any] | None
    problem: str | None = None
    raw: str | None = None


def inspect(poller: Poller) -> Inspection:
    """Return a poller's document; where it cannot be read, what is there and why not."""
    try:
        return Inspection(poller.name, poller.existing())
    except StateStoreError as error:
        content = poller.documents.raw_document(poller.name)
        if content is None:
            raise
        return Inspection(poller.name, None, str(error), content.decode(errors="replace"))


def exported(poller: Poller) -> str:
    """Return a poller's document as the text that `reset --to-checkpoint` reads."""
    return json.dumps(poller.existing(), indent=2)
