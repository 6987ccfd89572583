"""State in files, for local runs; several processes may share a directory."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from azure_functions_db.core.clocks import utc_now
from azure_functions_db.core.errors import StateStoreError
from azure_functions_db.core.files import listed, locked, make_folder, read_whole, replace_whole
from azure_functions_db.state.backend import Stored, poller_of
from azure_functions_db.state.store import DocumentStateStore

if TYPE_CHECKING:
    import datetime as dt
    import os
    from collections.abc import Callable, Iterable, Iterator

    from azure_functions_db.state.backend import DocumentName, Version

_SUFFIX = ".json"


class FileBackend:
    """One file per document, ``{directory}/{app}/{poller}.json``; its content is its version.

    A document is only ever replaced as a whole, under a lock file of its own beside it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: DocumentName) -> Stored | None:
        """Return the document, or None where there is none."""
        with _failures_of(name):
            content = read_whole(self._path(name))
        return None if content is None else Stored(content, content)

    def create(self, name: DocumentName, content: bytes) -> Version | None:
        """Write a new document and return its version; None when there is one already."""
        return self._swap(name, None, content)

    def replace(self, name: DocumentName, content: bytes, version: Version) -> Version | None:
        """Write over the version that was read; None when it is no longer the current one."""
        return self._swap(name, version, content)

    def delete(self, name: DocumentName, version: Version) -> bool:
        """Remove the version that was read; False when it is no longer the current one."""
        path = self._path(name)
        with _failures_of(name), locked(path.with_suffix(".lock")):
            if read_whole(path) != version:
                return False
            path.unlink()
        return True

    def pollers(self, app: str) -> Iterable[str]:
        """Return the encoded poller names that have a document, of one encoded app."""
        with _failures_of(None):
            names = [path.name for path in listed(self._directory / app)]
        return [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]

    def _swap(self, name: DocumentName, expected: Version | None, content: bytes) -> Version | None:
        path = self._path(name)
        with _failures_of(name):
            make_folder(path.parent)
            with locked(path.with_suffix(".lock")):
                if read_whole(path) != expected:
                    return None
                replace_whole(path, content, by_way_of=".tmp")  # the document is locked
        return content

    def _path(self, name: DocumentName) -> Path:
        return self._directory / name.app / f"{name.poller}{_SUFFIX}"


class FileStateStore(DocumentStateStore):
    """Keeps state in a directory; safe across processes of one machine, and across a crash."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        source_fingerprint: str | None = None,
        app_name: str | None = None,
        clock: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        backend = FileBackend(Path(path))
        super().__init__(backend, source_fingerprint=source_fingerprint, app_name=app_name, clock=clock)


@contextmanager
def _failures_of(name: DocumentName | None) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        poller_name = poller_of(name.poller) if name else None
        what = f"The state file of poller {poller_name!r}" if name else "The state directory"
        raise StateStoreError(
            f"{what} cannot be used: {failure.strerror} ({failure.filename})",
            poller_name=poller_name,
            unreachable=True,
        ) from failure
