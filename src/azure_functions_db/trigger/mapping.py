"""Events as the user's own models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

    from azure_functions_db.trigger.events import RowChange


class Model(Protocol):
    """What a Pydantic model class offers."""

    @classmethod
    def model_validate(cls, obj: Any) -> Self:
        """Return an instance made of the row; `ValueError` when the row does not fit."""


def mapped(events: Sequence[RowChange], model: type[Model] | None) -> tuple[list[Any], dict[str, ValueError]]:
    """Return what the handler is given, and the errors of the rows that do not fit by event id."""
    if model is None:
        return list(events), {}
    fitting: list[Any] = []
    misfits: dict[str, ValueError] = {}
    for event in events:
        try:
            fitting.append(model.model_validate(event.after))
        except ValueError as misfit:
            misfits[event.event_id] = misfit
    return fitting, misfits
