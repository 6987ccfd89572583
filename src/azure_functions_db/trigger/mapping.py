"""Events as the user's own models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

from azure_functions_db.core.secrets import masked_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from azure_functions_db.trigger.events import RowChange


class Model(Protocol):
    """What a Pydantic model class offers."""

    @classmethod
    def model_validate(cls, obj: Any) -> Self:
        """Return an instance made of the row; an exception when the row does not fit."""


def mapped(events: Sequence[RowChange], model: type[Model]) -> tuple[list[Any], dict[str, Exception]]:
    """Return what the handler is given, and the errors of the rows that do not fit by event id."""
    fitting: list[Any] = []
    misfits: dict[str, Exception] = {}
    for event in events:
        try:
            fitting.append(model.model_validate(event.after if event.after is not None else event.before))
        except Exception as misfit:  # noqa: BLE001 - a validator of the user's own may raise anything
            misfits[event.event_id] = misfit
    return fitting, misfits


def misfit_text(misfit: Exception) -> str:
    """Return what is wrong with a row; its values do not belong into logs."""
    errors = getattr(misfit, "errors", None)
    if not callable(errors) or not isinstance(misfit, ValueError):
        return f"{type(misfit).__name__}: {masked_words(misfit)}"
    told = errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in told)
