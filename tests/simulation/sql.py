"""A SQL database that keeps the state beside what handlers write, so that both can be one transaction.

Modelled is what the library's own store and its transactions ask of SQLAlchemy: a connection with a transaction, and
three statements on the table of states, by what they answer where each statement sees what is committed by then and
a row that was written stays locked until its transaction ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import BinaryExpression, Insert, Select, Update
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.sql.visitors import iterate

from azure_functions_db.state.sql import SqlStateStore
from tests.simulation.world import Event

if TYPE_CHECKING:
    from tests.simulation.judge import Judge
    from tests.simulation.storage import Client
    from tests.simulation.world import World

Row = tuple[str, int]
"""A document and its version."""

STATEMENT_FAULTS = ("throttled", "lost request", "lost reply")
COMMIT_FAULTS = ("lost request", "lost reply", "late write")


class SqlServer:
    """The table of states, who has locked its one row, and what handlers have written."""

    def __init__(self, world: World, judge: Judge) -> None:
        self.world = world
        self.judge = judge
        self.row: Row | None = None
        self.locker: SqlConnection | None = None
        self.unlocked = Event(world)

    def unlock(self, connection: SqlConnection) -> None:
        """Let go of what a connection has locked."""
        if self.locker is connection:
            self.locker = None
            self.unlocked.set()


_DIALECT = SimpleNamespace(name="postgresql", driver="psycopg")


class SqlEngine:
    """One process's way to the server."""

    dialect = _DIALECT

    def __init__(self, server: SqlServer, client: Client) -> None:
        self.server = server
        self.client = client

    def connect(self) -> SqlConnection:
        return SqlConnection(self)

    @contextmanager
    def begin(self) -> Iterator[SqlConnection]:
        with self.connect() as connection:
            transaction = connection.begin()
            try:
                yield connection
                transaction.commit()
            finally:
                transaction.close()


class SqlConnection:
    """A connection with at most one transaction, which is also what ends it."""

    dialect = _DIALECT
    connection = SimpleNamespace(dbapi_connection=None)

    def __init__(self, engine: SqlEngine) -> None:
        self.engine = engine
        self._server = engine.server
        self._process = engine.client.process
        self._effects: list[Callable[[], None]] = []
        self._row: Row | None = None
        """What the transaction has written over the state."""
        self._is_lost = self._is_committing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> Self:
        return self

    def write(self, effect: Callable[[], None]) -> None:
        """Have something take effect with this transaction, as a handler's own statements do."""
        self._effects.append(effect)

    def execute(self, statement: Any, parameters: Mapping[str, Any] | None = None) -> Any:
        match statement:
            case Select():
                return self._sent("read state", lambda: self._selected(statement), STATEMENT_FAULTS)
            case Insert() if parameters is not None:
                return self._sent("create state", lambda: self._inserted(parameters), STATEMENT_FAULTS)
            case Update():
                return self._sent("write state", lambda: self._updated(statement), STATEMENT_FAULTS)
        raise NotImplementedError(str(statement))

    def commit(self) -> None:
        """Commit; where the answer is lost nobody knows whether it was done."""
        self._sent("commit", self._commit, COMMIT_FAULTS)

    def close(self) -> None:
        """Roll back what was not committed; a commit that is under way comes to its end."""
        if not self._is_committing:
            self._effects.clear()
            self._row = None
            self._server.unlock(self)

    def _sent(self, what: str, act: Callable[[], Any], faults: tuple[str, ...]) -> Any:
        """Send a statement and wait for its answer; whoever gets none has lost the connection."""
        process, client = self._process, self.engine.client
        process.step(process.chance.seconds(0.05))
        if self._is_lost:
            raise self._failure(what, "the connection is lost")
        if client.service.is_down or client.is_cut_off:
            raise self._lost(what, "cannot be reached")
        match process.chance.strikes(*faults):
            case "throttled":
                raise self._lost(what, "is refused", patience=0.2)
            case "lost request":
                raise self._lost(what, "gets lost")
            case "lost reply":
                act()
                raise self._lost(what, "is done, the answer gets lost")
            case "late write":
                delay = client.patience * (1 + process.chance.random.random())
                self._is_committing = True
                self._server.world.later(delay, self._commit)
                raise self._lost(what, f"hangs, and is done {delay:.1f} s later")
        answer = act()
        process.step(process.chance.seconds(0.05))
        return answer

    def _lost(self, what: str, why: str, patience: float | None = None) -> OperationalError:
        self._is_lost = True
        self._process.step(self._process.chance.seconds(patience or self.engine.client.patience))
        return self._failure(what, why)

    def _failure(self, what: str, why: str) -> OperationalError:
        self._server.world.tell(self._process.name, f"{what}: {why}")
        return OperationalError(what, None, ConnectionError(why))

    # On the server.

    def _selected(self, statement: Any) -> Any:
        if statement._for_update_arg is not None:
            self._lock()
        row = self._row or self._server.row
        found = None if row is None else SimpleNamespace(document=row[0], version=row[1])
        return SimpleNamespace(one_or_none=lambda: found)

    def _inserted(self, parameters: Mapping[str, Any]) -> None:
        self._lock()
        if self._server.row is not None:
            raise IntegrityError("create state", None, ValueError("the row is there"))
        self._row = (parameters["document"], parameters["version"])

    def _updated(self, statement: Any) -> Any:
        # Read off the statement: to compile it takes longer than all else that is done here.
        wanted = {
            each.left.name: each.right.value
            for each in iterate(statement.whereclause)
            if isinstance(each, BinaryExpression)
        }
        values = {name: bound.value for name, bound in statement._values.items()}
        self._lock()
        current = self._row or self._server.row
        is_current = current is not None and current[1] == wanted["version"]
        if is_current:
            self._row = (values["document"], values["version"])
        return SimpleNamespace(rowcount=int(is_current))

    def _lock(self) -> None:
        """Wait until nobody else has the row; the server does not let anybody wait for ever."""
        server, world = self._server, self._server.world
        deadline = world.now + self.engine.client.patience
        while server.locker not in {None, self}:
            if world.now >= deadline:
                raise self._failure("lock the row", "it takes too long")
            server.unlocked.clear()
            server.unlocked.wait(deadline - world.now)
        server.locker = self

    def _commit(self) -> None:
        for effect in self._effects:
            effect()
        if self._row is not None:
            self._server.row = self._row
            self._server.judge.stored(self._row[0].encode())
        self._is_committing = False
        self.close()


def sql_store(engine: SqlEngine, **options: Any) -> SqlStateStore:
    """Return the library's own store on that database."""
    provider: Any = SimpleNamespace(get_engine=lambda _config: engine)
    return SqlStateStore(url="sqlite://", engine_provider=provider, **options)
