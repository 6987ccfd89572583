"""Each example app in the real runtime, against the services it names."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bson import Decimal128, ObjectId
from pymongo import MongoClient
from sqlalchemy import create_engine

from azure_functions_db import Outbox
from tests.acceptance.conftest import EXAMPLES
from tests.acceptance.host import FunctionApp, http, timer
from tests.support.broker import running_broker
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.acceptance.conftest import Sql

    Schema = Callable[[str, str], str]


WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@contextmanager
def held_row(url: str, statement: str) -> Iterator[None]:
    """Hold a lock, so that whoever wants it comes to stand side by side."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
        yield
    engine.dispose()


@pytest.mark.parametrize("example", sorted(path.parent.name for path in EXAMPLES.glob("*/function_app.py")))
def test_every_example_has_a_readme_and_is_indexed_without_any_setting(example: str) -> None:
    assert (EXAMPLES / example / "README.md").read_text().startswith("# ")
    with FunctionApp(EXAMPLES / example) as app:
        assert app.functions
        levels = [binding.get("authLevel") for bindings in app.functions.values() for binding in bindings]
    assert "ANONYMOUS" not in map(str, levels), "whoever calls a function has its key"


def test_http_api(postgres_database: str, sql: Sql, with_schema: Schema) -> None:
    url = with_schema(postgres_database, "http_api")
    with FunctionApp(EXAMPLES / "http_api", {"SHOP_DB": url}) as app:
        rows = [{"id": 1, "name": "Ada", "city": "London"}, {"id": 2, "name": "Niels", "city": "Oslo"}]
        assert app.invoke("put_customers", req=http("PUT", body=rows)).status == 201
        assert app.invoke("put_customers", req=http("PUT", body={"id": 2, "name": "Ole", "city": "Oslo"})).status == 201
        assert app.invoke("get_customer", req=http(route={"id": "1"})).json == rows[0]
        assert app.invoke("get_customer", req=http(route={"id": "9"})).status == 404
        assert app.invoke("list_customers", req=http(query={"city": "Oslo"})).json == [{"id": 2, "name": "Ole"}]
    assert sql(url, "SELECT count(*) FROM customers") == [(2,)]


def test_postgres_to_mariadb(
    postgres_database: str, mariadb_database: str, site: dict[str, str], sql: Sql, with_schema: Schema
) -> None:
    source = with_schema(postgres_database, "postgres_to_mariadb")
    sql(mariadb_database, "CREATE TABLE products (id INT PRIMARY KEY, name VARCHAR(50), price DECIMAL(10, 2))")
    sql(source, "INSERT INTO products (id, name, price) SELECT n, 'p' || n, n FROM generate_series(1, 2500) AS n")
    settings = {"WAREHOUSE_DB": source, "CATALOGUE_DB": mariadb_database}
    with FunctionApp(EXAMPLES / "postgres_to_mariadb", settings | site) as app:
        first = app.invoke("sync_products", timer=timer())
        assert first.ok, first.traceback
        assert sql(mariadb_database, "SELECT count(*), max(price) FROM products") == [(2500, 2500)]
        sql(source, "UPDATE products SET price = 0 WHERE id <= 3")
        assert app.invoke("sync_products", timer=timer()).ok
    assert sql(mariadb_database, "SELECT count(*) FROM products WHERE price = 0") == [(3,)]


def test_postgres_mirror(
    postgres_log_database: str, mariadb_database: str, site: dict[str, str], sql: Sql, with_schema: Schema
) -> None:
    source = with_schema(postgres_log_database, "postgres_mirror")
    sql(mariadb_database, "CREATE TABLE products (id INT PRIMARY KEY, name VARCHAR(50), price DECIMAL(10, 2))")
    sql(source, "INSERT INTO products SELECT n, 'p' || n, n FROM generate_series(1, 2500) AS n")
    settings = {"WAREHOUSE_DB": source, "MIRROR_DB": mariadb_database}
    rows = "SELECT id, name, price FROM products ORDER BY id"
    with FunctionApp(EXAMPLES / "postgres_mirror", settings | site) as app:
        first = app.invoke("mirror_products", timer=timer())
        assert first.ok, first.traceback
        assert sql(mariadb_database, "SELECT count(*) FROM products") == [(2500,)]
        sql(source, "UPDATE products SET price = 0 WHERE id <= 3")
        sql(source, "DELETE FROM products WHERE id > 10")
        sql(source, "UPDATE products SET id = 77 WHERE id = 7")
        second = app.invoke("mirror_products", timer=timer())
        assert second.ok, second.traceback
        assert sql(mariadb_database, rows) == sql(source, rows)
        sql(source, "TRUNCATE products")
        assert app.invoke("mirror_products", timer=timer()).ok
    assert sql(mariadb_database, rows) == []


def test_mysql_mirror(
    postgres_database: str, mariadb_database: str, site: dict[str, str], sql: Sql, with_schema: Schema
) -> None:
    source = with_schema(mariadb_database, "mysql_mirror")
    sql(postgres_database, "CREATE TABLE products (id INT PRIMARY KEY, name VARCHAR(50), price DECIMAL(10, 2))")
    sql(source, "INSERT INTO products SELECT seq, concat('p', seq), seq FROM seq_1_to_2500")
    with FunctionApp(EXAMPLES / "mysql_mirror", {"SHOP_DB": source, "COPY_DB": postgres_database} | site) as app:

        def in_step() -> bool:
            ticked = app.invoke("mirror_products", timer=timer())
            assert ticked.ok, ticked.traceback
            every = "SELECT id, name, price FROM products ORDER BY id"
            return bool(sql(source, every) == sql(postgres_database, every))

        assert in_step()
        sql(source, "UPDATE products SET price = 0 WHERE id <= 3")
        sql(source, "UPDATE products SET id = 9000 WHERE id = 4")
        sql(source, "DELETE FROM products WHERE id > 2000")
        sql(source, "INSERT INTO products VALUES (2001, 'again', 1)")
        assert in_step()
        sql(source, "TRUNCATE TABLE products")
        sql(source, "INSERT INTO products VALUES (1, 'new', 1)")
        assert in_step()
    assert sql(postgres_database, "SELECT id FROM products") == [(1,)]


def test_sqlserver_mirror(sql_server: Any, postgres_database: str, site: dict[str, str], sql: Sql) -> None:
    sql_server.run((EXAMPLES / "sqlserver_mirror" / "schema.sql").read_text())
    sql_server.track("products")
    sql(postgres_database, "CREATE TABLE products (id INT PRIMARY KEY, name VARCHAR(50), price DECIMAL(10, 2))")
    rows = ", ".join(f"({number}, N'p{number}', {number})" for number in range(1, 1501))
    sql_server.run(f"INSERT INTO dbo.products (id, name, price) VALUES {rows}")
    settings = {"SHOP_DB": sql_server.url("pyodbc"), "COPY_DB": postgres_database}
    with FunctionApp(EXAMPLES / "sqlserver_mirror", settings | site) as app:
        first = app.invoke("mirror_products", timer=timer())
        assert first.ok, first.traceback
        assert sql(postgres_database, "SELECT count(*), max(price) FROM products") == [(1500, 1500)]
        sql_server.run("UPDATE dbo.products SET price = 0 WHERE id <= 3", "DELETE FROM dbo.products WHERE id > 10")
        sql_server.run("INSERT INTO dbo.products (id, name, price) VALUES (2000, N'again', 7)")
        second = app.invoke("mirror_products", timer=timer())
        assert second.ok, second.traceback
    assert sql(postgres_database, "SELECT count(*), sum(price) FROM products") == [(11, 56)]


def test_mongo_mirror(
    postgres_database: str, mongo_uri: str, site: dict[str, str], sql: Sql, with_schema: Schema
) -> None:
    copy = with_schema(postgres_database, "mongo_mirror")
    with (
        MongoClient[Any](mongo_uri) as client,
        FunctionApp(EXAMPLES / "mongo_mirror", {"SHOP_MONGO": mongo_uri, "COPY_DB": copy} | site) as app,
    ):
        client.drop_database("shop")
        products = client["shop"]["products"]

        def in_step() -> bool:
            ticked = app.invoke("mirror_products", timer=timer())
            assert ticked.ok, ticked.traceback
            rows = [
                (str(each["_id"]), each["name"], each["price"].to_decimal()) for each in products.find().sort("_id")
            ]
            return bool(rows == sql(copy, "SELECT id, name, price FROM products ORDER BY id"))

        keys = [ObjectId(f"{number:024x}") for number in range(20)]
        products.insert_many([{"_id": key, "name": "a", "price": Decimal128("1.50")} for key in keys])
        assert in_step()
        products.update_many({"_id": {"$lt": keys[3]}}, {"$set": {"price": Decimal128("0.00")}})
        products.delete_many({"_id": {"$gt": keys[10]}})
        assert in_step()
        products.drop()
        products.insert_one({"_id": keys[0], "name": "b", "price": Decimal128("2.00")})
        assert in_step()
    assert sql(copy, "SELECT name FROM products") == [("b",)]


def test_async_handlers(postgres_database: str, site: dict[str, str], sql: Sql, with_schema: Schema) -> None:
    url = with_schema(postgres_database, "async_handlers")
    sql(url, "INSERT INTO accounts VALUES ('ada', 100), ('grace', 0)")
    with FunctionApp(EXAMPLES / "async_handlers", {"SHOP_DB": url, **site}) as app:
        assert app.invoke("add_payment", req=http("POST", body={"id": 1, "amount": 5})).ok
        assert app.invoke("get_payment", req=http(route={"id": "1"})).json == {"id": 1, "amount": 5}
        assert "NotFoundError" in (app.invoke("get_payment", req=http(route={"id": "2"})).error or "")
        order = {"from": "ada", "to": "grace", "amount": 30}
        assert app.invoke("transfer", req=http("POST", body=order)).json == {"left": 70}
        assert app.invoke("transfer", req=http("POST", body=order | {"amount": 71})).status == 409
        assert app.invoke("transfer", req=http("POST", body=order | {"amount": -71})).status == 400
        assert app.invoke("transfer", req=http("POST", body=order | {"to": "nobody"})).status == 404
        with held_row(url, "SELECT * FROM accounts WHERE name = 'ada' FOR UPDATE"):
            both = [app.start("transfer", req=http("POST", body=order | {"amount": 50})) for _ in range(2)]
            wait_for(lambda: sql(url, WAITING) == [(2,)], 60, "both transfers stand before the lock")
        assert sorted(each.result(60).status for each in both) == [200, 409], "the same money is not spent twice"
        assert app.invoke("transfer", req=http("POST", body={"from": "grace", "to": "ada", "amount": 50})).ok
        ticked = app.invoke("write_receipts", timer=timer())
        assert ticked.ok, ticked.traceback
    assert sql(url, "SELECT name, balance FROM accounts ORDER BY name") == [("ada", 70), ("grace", 30)]
    assert sql(url, "SELECT payment_id, length(event_id) >= 64 FROM receipts") == [(1, True)]


def test_transactional(postgres_database: str, sql: Sql, with_schema: Schema) -> None:
    url = with_schema(postgres_database, "transactional")
    sql(url, "INSERT INTO sales SELECT n, n FROM generate_series(1, 100) AS n")
    with FunctionApp(EXAMPLES / "transactional", {"BOOKS_DB": url}) as app:
        ticked = app.invoke("book_sales", timer=timer())
        assert ticked.ok, ticked.traceback
        sql(url, "INSERT INTO sales VALUES (101, 101)")
        assert app.invoke("book_sales", timer=timer()).ok
    assert sql(url, "SELECT count(*), count(DISTINCT sale_id), sum(amount) FROM ledger") == [(101, 101, 5151)]


def test_outbox(postgres_database: str, site: dict[str, str], sql: Sql, with_schema: Schema) -> None:
    url = with_schema(postgres_database, "outbox")
    engine = create_engine(url)
    Outbox().create(engine)
    engine.dispose()
    with FunctionApp(EXAMPLES / "outbox", {"SHOP_DB": url, "WAREHOUSE_DB": url, **site}) as app:
        for number in (1, 2):
            order = {"id": number, "item": "lamp"}
            assert app.invoke("place_order", req=http("POST", body=order)).status == 201
        assert not app.invoke("place_order", req=http("POST", body={"id": 2, "item": "twice"})).ok
        assert sql(url, "SELECT aggregateid FROM outbox ORDER BY sequence") == [("1",), ("2",)]
        ticked = app.invoke("tell_warehouse", timer=timer())
        assert ticked.ok, ticked.traceback
        assert app.invoke("tell_warehouse", timer=timer()).ok
    assert sql(url, "SELECT order_id, item FROM parcels ORDER BY number") == [(1, "lamp"), (2, "lamp")]
    assert sql(url, "SELECT count(*) FROM outbox") == [(0,)]


def test_tombstones(postgres_database: str, site: dict[str, str], sql: Sql, with_schema: Schema) -> None:
    url = with_schema(postgres_database, "tombstones")
    sql(url, "INSERT INTO products (id, name) VALUES (1, 'lamp'), (2, 'chair'), (3, 'table')")
    with FunctionApp(EXAMPLES / "tombstones", {"SHOP_DB": url, **site}) as app:
        first = app.invoke("follow_products", timer=timer())
        assert first.ok, first.traceback
        sql(url, "DELETE FROM products WHERE id < 3")
        sql(url, "INSERT INTO products (id, name) VALUES (2, 'stool')")
        assert app.invoke("follow_products", timer=timer()).ok
    assert sql(url, "SELECT id, name FROM search_index ORDER BY id") == [(2, "stool"), (3, "table")]


def test_quarantine(postgres_database: str, site: dict[str, str], sql: Sql, with_schema: Schema) -> None:
    url = with_schema(postgres_database, "quarantine")
    sql(url, "INSERT INTO orders SELECT n, CASE WHEN n = 13 THEN NULL ELSE n END FROM generate_series(1, 40) AS n")
    with FunctionApp(EXAMPLES / "quarantine", {"SHOP_DB": url, **site}) as app:
        first = app.invoke("write_invoices", timer=timer())
        assert "HandlerError" in (first.error or "")
        assert "TypeError" in (first.traceback or ""), "the cause reaches the host"
        second = app.invoke("write_invoices", timer=timer())
        assert second.ok, second.traceback
        assert sql(url, "SELECT count(*) FROM invoices") == [(39,)]
        [(event_id,)] = sql(url, "SELECT event_id FROM azfdb_quarantine")
        assert app.invoke("replay", req=http("POST", body={})).json == {"replayed": 0}
        assert app.invoke("replay", req=http("POST", body={event_id: 100})).json == {"replayed": 1}
    assert sql(url, "SELECT total FROM invoices WHERE order_id = 13") == [(125,)]
    assert sql(url, "SELECT count(*) FROM azfdb_quarantine") == [(0,)]


def test_quickstart(tmp_path: Path, sql: Sql) -> None:
    app = shutil.copytree(EXAMPLES / "quickstart", tmp_path / "quickstart")
    command = [str(Path(sys.prefix) / "bin" / "azfdb"), "run", str(app), "--once", "changed_orders"]
    for printed in (
        ["changed: {'id': 1, 'status': 'new', 'version': 1}"],
        ["changed: {'id': 1, 'status': 'paid'", "changed: {'id': 2"],
    ):
        subprocess.run([sys.executable, str(app / "shop.py")], check=True)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        lines = done.stdout.splitlines()
        assert [line[: len(start)] for line, start in zip(lines, printed, strict=True)] == printed


def test_hash_diff(postgres_database: str, site: dict[str, str], sql: Sql, with_schema: Schema) -> None:
    url = with_schema(postgres_database, "hash_diff")
    sql(url, "INSERT INTO customers SELECT n, 'c' || n, 'Oslo', now() FROM generate_series(1, 1200) AS n")
    mirrored = "SELECT count(*), count(*) FILTER (WHERE city = 'Rome'), max(number) FROM customers_mirror"
    with FunctionApp(EXAMPLES / "hash_diff", {"ERP_DB": url, "SHOP_DB": url, **site}) as app:
        first = app.invoke("mirror_customers", timer=timer())
        assert first.ok, first.traceback
        assert sql(url, mirrored) == [(1200, 0, 1200)]
        sql(url, "DELETE FROM customers WHERE number > 1000")
        sql(url, "UPDATE customers SET city = 'Rome' WHERE number <= 3")
        sql(url, "UPDATE customers SET last_seen = now()")
        second = app.invoke("mirror_customers", timer=timer())
        assert second.ok, second.traceback
    assert sql(url, mirrored) == [(1000, 3, 1000)]


@pytest.mark.parametrize("function", ["publish_orders", "queue_orders"])
def test_relay(
    function: str,
    postgres_database: str,
    site: dict[str, str],
    sql: Sql,
    with_schema: Schema,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "sitecustomize.py").write_text("from tests.support import padding\n\npadding.install()\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{EXAMPLES.parent}")
    url = with_schema(postgres_database, "relay")
    sql(url, "INSERT INTO orders SELECT n, 'new', n FROM generate_series(1, 100) AS n")
    with running_broker(tmp_path) as broker:
        brokers = {"Events": broker.connection_string, "Bus": broker.connection_string}
        with FunctionApp(EXAMPLES / "relay", {"SHOP_DB": url, **site, **brokers}) as app:
            first = app.invoke(function, timer=timer())
            assert first.ok, first.traceback
            sql(url, "UPDATE orders SET status = 'paid', version = 101 WHERE id = 7")
            assert app.invoke(function, timer=timer()).ok
        bodies = [json.loads(each["body"]) for each in broker.received()]
    assert len(bodies) == len({body["id"] for body in bodies}) == 101
    assert [body["data"]["after"]["status"] for body in bodies if body["subject"] == "id=7"] == ["new", "paid"]
