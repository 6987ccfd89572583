"""A store that shows what an act would do, and does not do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure_functions_db.state.store import DocumentStateStore

if TYPE_CHECKING:
    from collections.abc import Iterable

    from azure_functions_db.state.backend import Backend, Stored, Version
    from azure_functions_db.state.names import DocumentName


class _Unwritten:
    """Reads what is there; what is written goes nowhere."""

    def __init__(self, real: Backend) -> None:
        self._real = real

    def read(self, name: DocumentName) -> Stored | None:
        return self._real.read(name)

    def create(self, name: DocumentName, content: bytes) -> Version | None:  # noqa: ARG002 - see the class
        return "unwritten"

    def replace(self, name: DocumentName, content: bytes, version: Version) -> Version | None:  # noqa: ARG002 - see the class
        return "unwritten"

    def pollers(self, app: str) -> Iterable[str]:
        return self._real.pollers(app)


def rehearsal_of(store: DocumentStateStore) -> DocumentStateStore:
    """Return a store on the same state whose acts are refused and told as the real one's, without effect."""
    return DocumentStateStore(
        _Unwritten(store._backend),  # noqa: SLF001 - same package
        app_name=store._app_name,  # noqa: SLF001
        clock=store._clock,  # noqa: SLF001
    )
