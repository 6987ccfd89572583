"""Quarantine in files: one JSON file per row."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from azure_functions_db.core.errors import StateStoreError
from azure_functions_db.core.files import listed, make_folder, read_whole, replace_whole
from azure_functions_db.quarantine.entry import decoded, encoded, folder_of, is_at, oldest_first, path_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from azure_functions_db.core.types import QuarantinedRow


class FileQuarantine:
    """Keeps rows in a folder, at ``{path}/{poller_name}/{event_id}.json``; made when first needed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._root = Path(path)

    def put(self, rows: Sequence[QuarantinedRow]) -> None:
        """Keep the rows durably; the same row put twice is kept once."""
        with _translated(self._root):
            for row in rows:
                path = self._root / path_of(row.poller_name, row.event_id)
                make_folder(path.parent)
                replace_whole(path, encoded(row).encode(), by_way_of=f".{os.getpid()}.part")

    def entries(self, poller_name: str | None = None) -> list[QuarantinedRow]:
        """Return what is kept, oldest first; of one poller where it is named."""
        with _translated(self._root):
            folders = self._folders() if poller_name is None else [self._root / folder_of(poller_name)]
            paths = [path for folder in folders for path in listed(folder) if path.suffix == ".json"]
            contents = [(path, read_whole(path)) for path in paths]
        return oldest_first(
            [
                decoded(content, str(path), is_at(f"{path.parent.name}/{path.name}"))
                for path, content in contents
                if content is not None  # forgotten since the folder was listed
            ]
        )

    def count(self, poller_name: str) -> int:
        """Return how many rows of a poller are kept; none is read."""
        with _translated(self._root):
            return sum(path.suffix == ".json" for path in listed(self._root / folder_of(poller_name)))

    def remove(self, poller_name: str, event_id: str) -> None:
        """Forget one row; one that is not there is no error."""
        path = self._root / path_of(poller_name, event_id)
        with _translated(self._root):
            path.unlink(missing_ok=True)
            # The system does not mind to remove nothing where nothing could be removed.
            if path.parent.is_dir() and not os.access(path.parent, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def _folders(self) -> list[Path]:
        return [path for path in listed(self._root) if path.is_dir()]


@contextmanager
def _translated(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateStoreError(
            f"The quarantine in {root} failed: {error.strerror or error} ({error.filename})", unreachable=True
        ) from error
