"""A storage service that loses, delays and repeats what is said to it, and what the library keeps there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from azure_functions_db.core.errors import StateStoreError
from azure_functions_db.quarantine import decoded, encoded, folder_of, is_at, oldest_first, path_of
from azure_functions_db.state.backend import DocumentName, Stored, Version

if TYPE_CHECKING:
    from azure_functions_db.core.types import QuarantinedRow
    from tests.simulation.judge import Judge
    from tests.simulation.world import Process, World

T = TypeVar("T")

# A refusal is answered at once; whoever waits for an answer that is lost waits for this part of the ttl at most.
READ_FAULTS = ("throttled", "lost request")
WRITE_FAULTS = ("throttled", "lost request", "lost reply", "late write", "refused retry", "duplicated")


class Service:
    """What is stored, and since when it cannot be reached; each act takes no time and happens whole."""

    def __init__(self, world: World, judge: Judge) -> None:
        self.world = world
        self.is_down = False
        self._judge = judge
        self._documents: dict[DocumentName, tuple[bytes, int]] = {}
        self._blobs: dict[str, str] = {}
        self._versions = 0

    def read(self, name: DocumentName) -> Stored | None:
        found = self._documents.get(name)
        return None if found is None else Stored(*found)

    def create(self, name: DocumentName, content: bytes) -> Version | None:
        return None if name in self._documents else self._write(name, content)

    def replace(self, name: DocumentName, content: bytes, version: Version) -> Version | None:
        found = self._documents.get(name)
        return self._write(name, content) if found is not None and found[1] == version else None

    def overwrite(self, name: DocumentName, content: bytes) -> Version:
        """Write whatever is there: what a service would do that is told no condition."""
        return self._write(name, content)

    def put(self, path: str, text: str, by: str, token: int) -> None:
        """Store a row that was put aside by a process; the token of then tells whether it still holds the lease."""
        self._blobs[path] = text
        self._judge.put_aside(text, is_due=self._judge.holder == (by, token))

    @property
    def token(self) -> int:
        return self._judge.token

    def remove(self, path: str) -> None:
        text = self._blobs.pop(path, None)
        if text is not None:
            self._judge.took_back(text)

    def remove_listed(self, path: str, text: str) -> None:
        """Remove what was listed, and nothing that was put there since."""
        if self._blobs.get(path) == text:
            self.remove(path)

    def under(self, folder: str) -> dict[str, str]:
        return {path: text for path, text in self._blobs.items() if path.startswith(folder)}

    def _write(self, name: DocumentName, content: bytes) -> Version:
        self._versions += 1
        self._documents[name] = (content, self._versions)
        self._judge.stored(content)
        return self._versions


class Client:
    """One process's way to the service: requests and answers travel, and may not arrive."""

    def __init__(self, service: Service, process: Process, patience: float) -> None:
        self.service = service
        self.process = process
        self.is_cut_off = False
        self.patience = patience
        """For how long an answer is waited for at most."""

    def ask(self, what: str, act: Callable[[], T], faults: Sequence[str]) -> T:
        """Send a request and wait for the answer; each way is a place to stop or to die."""
        process, world = self.process, self.service.world
        process.step(process.chance.seconds(0.05))
        if self.service.is_down or self.is_cut_off:
            raise self._unanswered(what, "cannot be reached")
        match process.chance.strikes(*faults):
            case "throttled":
                process.step(process.chance.seconds(0.2))
                raise self._refusal(what, "is throttled")
            case "lost request":
                raise self._unanswered(what, "gets lost")
            case "lost reply":
                act()
                raise self._unanswered(what, "takes effect, the answer gets lost")
            case "late write":
                delay = self.patience * (1 + process.chance.random.random())
                world.later(delay, act)
                raise self._unanswered(what, f"hangs, and takes effect {delay:.1f} s later")
            case "refused retry":
                act()
                world.tell(process.name, f"{what}: takes effect, is sent once more and refused")
            case "duplicated":
                world.later(process.chance.seconds(self.patience), act)
                world.tell(process.name, f"{what}: is sent twice")
        answer = act()
        process.step(process.chance.seconds(0.05))
        return answer

    def _unanswered(self, what: str, why: str) -> StateStoreError:
        error = self._refusal(what, why)
        self.process.step(self.process.chance.seconds(self.patience))
        return error

    def _refusal(self, what: str, why: str) -> StateStoreError:
        self.service.world.tell(self.process.name, f"{what}: {why}")
        return StateStoreError(f"{what}: {why}", unreachable=True)


class SimulatedBackend:
    """State documents in the service."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def read(self, name: DocumentName) -> Stored | None:
        return self._client.ask("read state", lambda: self._client.service.read(name), READ_FAULTS)

    def create(self, name: DocumentName, content: bytes) -> Version | None:
        return self._client.ask("create state", lambda: self._client.service.create(name, content), WRITE_FAULTS)

    def replace(self, name: DocumentName, content: bytes, version: Version) -> Version | None:
        act = self._client.service.replace
        return self._client.ask("write state", lambda: act(name, content, version), WRITE_FAULTS)

    def pollers(self, app: str) -> Iterable[str]:
        return []


class SimulatedSink:
    """A quarantine in the service, one blob per row."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def put(self, rows: Sequence[QuarantinedRow]) -> None:
        service, name = self._client.service, self._client.process.name
        for row in rows:
            path, text = path_of(row.poller_name, row.event_id), encoded(row)
            self._ask("put a row aside", partial(service.put, path, text, name, service.token))

    def entries(self, poller_name: str | None = None) -> list[QuarantinedRow]:
        found = self._found("" if poller_name is None else folder_of(poller_name))
        return oldest_first([decoded(text, path, is_at(path)) for path, text in found.items()])

    def remove(self, poller_name: str, event_id: str) -> None:
        path = path_of(poller_name, event_id)
        self._ask("remove a row", lambda: self._client.service.remove(path))

    def take_back(self, poller_name: str, batch_id: str) -> None:
        for path, text in self._found(folder_of(poller_name)).items():
            if decoded(text, path, is_at(path)).batch_id == batch_id:
                self._ask("take a row back", partial(self._client.service.remove_listed, path, text))

    def _found(self, folder: str) -> dict[str, str]:
        return self._client.ask("read quarantine", lambda: self._client.service.under(folder), READ_FAULTS)

    def _ask(self, what: str, act: Callable[[], None]) -> None:
        self._client.ask(what, act, ("throttled", "lost request", "lost reply", "late write"))
