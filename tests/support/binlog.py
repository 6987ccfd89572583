"""What tests do to the binary log of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from sqlalchemy import Engine


def run(engine: Engine, *statements: str, **values: Any) -> list[Any]:
    """Run statements in one transaction; return the rows of the last."""
    rows: list[Any] = []
    with engine.begin() as connection:
        for statement in statements:
            result = connection.execute(text(statement), values)
            rows = list(result.all()) if result.returns_rows else []
    return rows


def end_of_log(engine: Engine, *, with_offset: bool = False) -> str:
    """Return the newest file of the log, or the place where it ends."""
    is_mysql = not getattr(engine.dialect, "is_mariadb", False)
    file, offset = run(engine, "SHOW BINARY LOG STATUS" if is_mysql else "SHOW MASTER STATUS")[0][:2]
    return f"{file}:{offset}" if with_offset else str(file)


def purge(engine: Engine) -> None:
    """Throw away all files but the newest; MariaDB keeps one for as long as InnoDB may need it after a crash."""

    def is_alone() -> bool:
        run(engine, "FLUSH BINARY LOGS")
        run(engine, f"PURGE BINARY LOGS TO '{end_of_log(engine)}'")
        return len(run(engine, "SHOW BINARY LOGS")) == 1

    wait_for(is_alone, 30, "the log cannot be purged")
