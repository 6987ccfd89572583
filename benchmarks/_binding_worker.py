"""Does one thing of the bindings whenever it is told to, and says how many seconds it took.

The same script runs in two environments: with this project and with the released package.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from azure_functions_db import DbReader, DbWriter

ROWS: list[dict[str, Any]] = [
    {
        "id": key,
        "customer": f"customer {key}",
        "status": "new",
        "amount": key / 7,
        "quantity": key % 9,
        "note": "x" * 60,
    }
    for key in range(1, 10_001)
]


def works(url: str) -> dict[str, Callable[[], Any]]:
    reader = DbReader(url=url, table="bench_rival")
    sql, key = "SELECT * FROM bench_rival WHERE id = :id", {"id": 1}

    def writer() -> Any:
        return DbWriter(url=url, table="bench_rival")

    return {
        "get": lambda: reader.get(pk=key),
        "get, reader made per call": lambda: DbReader(url=url, table="bench_rival").get(pk=key),
        "query of one row": lambda: reader.query(sql, params=key),
        "upsert of one row": lambda: writer().upsert(data=ROWS[0], conflict_columns=["id"]),
        "insert_many of 10,000 rows": lambda: writer().insert_many(rows=ROWS),
        "upsert_many of 10,000 rows": lambda: writer().upsert_many(rows=ROWS, conflict_columns=["id"]),
    }


def main() -> None:
    warnings.simplefilter("ignore")
    known = works(sys.argv[1])
    for line in sys.stdin:
        name, repeat = line.rstrip("\n").split("|")
        started = time.perf_counter()
        for _ in range(int(repeat)):
            known[name]()
        print((time.perf_counter() - started) / int(repeat), flush=True)


if __name__ == "__main__":
    main()
