"""One row: `DbReader` beside a plain SQLAlchemy call on a pooled engine (begin, statement, rollback)."""

from __future__ import annotations

from typing import Any

from common import Work, compare, databases
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, bindparam, create_engine, insert, select, text

from azure_functions_db import DbReader

TARGETS = {"postgres": 0.6, "mariadb": 0.9, "sqlite": 0.9}
SQL = "SELECT * FROM bench_single WHERE id = :id"


def table() -> Table:
    texts = [Column(f"text_{index}", String(50)) for index in range(5)]
    numbers = [Column(f"number_{index}", Integer) for index in range(4)]
    return Table("bench_single", MetaData(), Column("id", Integer, primary_key=True), *texts, *numbers)


def fill(engine: Engine, target: Table) -> None:
    target.metadata.create_all(engine)
    names = [column.name for column in target.columns]
    with engine.begin() as connection:
        connection.execute(
            insert(target), [{name: str(key) if "text" in name else key for name in names} for key in range(1, 1001)]
        )


def plain_get(engine: Engine, target: Table) -> Work:
    statement = select(target).where(target.c.id == bindparam("id"))

    def work() -> Any:
        with engine.connect() as connection:
            return dict(connection.execute(statement, {"id": 5}).mappings().one())

    return work


def plain_query(engine: Engine) -> Work:
    statement = text(SQL)

    def work() -> Any:
        with engine.connect() as connection:
            return [dict(row) for row in connection.execute(statement, {"id": 5}).mappings()]

    return work


def measure(kind: str, url: str) -> None:
    engine, target = create_engine(url), table()
    fill(engine, target)
    reader = DbReader(url=url, table="bench_single")
    allowed, timing = TARGETS[kind], {"rounds": 60, "repeat": 50}
    get, query = plain_get(engine, target), plain_query(engine)
    compare("get", kind, lambda: reader.get(pk={"id": 5}), get, target=allowed, **timing)
    compare("query of one row", kind, lambda: reader.query(SQL, params={"id": 5}), query, target=allowed, **timing)
    compare(
        "get, reader made per call",
        kind,
        lambda: DbReader(url=url, table="bench_single").get(pk={"id": 5}),
        get,
        target=allowed + 0.1,
        **timing,
    )
    engine.dispose()


if __name__ == "__main__":
    with databases() as urls:
        for kind, url in urls.items():
            measure(kind, url)
