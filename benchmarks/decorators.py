"""What a decorator costs: a decorated function beside the same work done by hand in its body."""

from __future__ import annotations

from typing import Any

from common import compare, databases
from sqlalchemy import create_engine, text

from azure_functions_db import DbBindings, DbReader, DbWriter, EngineProvider

db = DbBindings()


def main() -> None:
    """Compare on each database."""
    with databases() as urls:
        for kind, url in urls.items():
            engine = create_engine(url)
            with engine.begin() as connection:
                connection.execute(text("CREATE TABLE users (id INTEGER PRIMARY KEY, name VARCHAR(20))"))
                connection.execute(text("INSERT INTO users VALUES (1, 'Ada')"))
            engine.dispose()
            provider = EngineProvider()
            measure(kind, {"url": url, "table": "users", "engine_provider": provider})
            provider.dispose_all()


def measure(kind: str, place: dict[str, Any]) -> None:
    """Compare one input and one output with the same calls by hand."""

    @db.input("user", **place, pk=lambda req: {"id": req})
    def decorated_input(req: int, user: Any) -> Any:  # noqa: ARG001 - the key is made from it
        return user

    def input_by_hand() -> Any:
        with DbReader(**place) as reader:
            return reader.get(pk={"id": 1})

    @db.output("out", **place, action="upsert", conflict_columns=["id"])
    def decorated_output(req: int, out: Any) -> None:
        out.set({"id": req, "name": "Grace"})

    def output_by_hand() -> None:
        with DbWriter(**place) as writer:
            writer.upsert(data={"id": 1, "name": "Grace"}, conflict_columns=["id"])

    compare("decorators", f"{kind}: input by key", lambda: decorated_input(req=1), input_by_hand, target=1.3, repeat=50)
    compare("decorators", f"{kind}: output", lambda: decorated_output(req=1), output_by_hand, target=1.3, repeat=50)


if __name__ == "__main__":
    main()
