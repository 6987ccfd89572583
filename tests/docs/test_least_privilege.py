"""The page of least privileges says what suffices, and nothing that could be left out."""

from __future__ import annotations

import datetime as dt
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.data.tables import TableClient, TableSasPermissions, TableServiceClient, generate_table_sas
from azure.storage.blob import BlobServiceClient, ContainerClient, ContainerSasPermissions, generate_container_sas
from sqlalchemy import create_engine, make_url, text

from azure_functions_db import (
    BlobCheckpointStore,
    BlobQuarantine,
    DbError,
    DbReader,
    DbWriter,
    EngineProvider,
    PollTrigger,
    SqlAlchemySource,
    SqlQuarantine,
    SqlStateStore,
    TableStateStore,
)
from azure_functions_db.core.types import QuarantinedRow
from azure_functions_db.ledger import DeliveredLedger, ProcessedLedger
from tests.conftest import temporary_database
from tests.docs.pages import CHECKOUT

if TYPE_CHECKING:
    from azure_functions_db.trigger.events import RowChange

PAGE = (CHECKOUT / "docs" / "operations" / "least-privilege.md").read_text()
GRANT = re.compile(r"GRANT (?P<rights>[\w, ]+) ON (?P<place>.+?) TO ")
TABLES = (
    "CREATE TABLE {}orders (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, note VARCHAR(50))",
    "CREATE INDEX orders_by_version ON {}orders (version, id)",
    "CREATE TABLE {}customers (id INTEGER PRIMARY KEY, name VARCHAR(50))",
    "CREATE TABLE {}shipments (id INTEGER PRIMARY KEY, note VARCHAR(50))",
    "INSERT INTO {}customers VALUES (1, 'Ann')",
)
PARTS: tuple[Callable[..., Any], ...] = (SqlStateStore, SqlQuarantine, ProcessedLedger, DeliveredLedger)


def statements(dialect: str) -> list[str]:
    """Return the page's own statements for a database."""
    blocks = re.findall(rf"^```{dialect}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return [statement for block in blocks for statement in block.strip().split("\n")]


def single_rights(dialect: str) -> list[tuple[str, str]]:
    """Return each right that the page grants, and on what."""
    found = [GRANT.match(statement) for statement in statements(dialect)]
    return [(right, grant["place"]) for grant in found if grant for right in grant["rights"].split(", ")]


@dataclass
class Shop:
    """A database with the tables of the page, and a login that has the rights of the page."""

    admin_url: str
    dialect: str
    schema: str | None
    role: str
    login: str
    url: str = ""

    def run(self, *commands: str) -> None:
        engine = create_engine(self.admin_url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for command in commands:
                connection.execute(text(self._ours(command)))
        engine.dispose()

    def _ours(self, command: str) -> str:
        """Put this test's names in place of the page's."""
        database = str(make_url(self.admin_url).database)
        named = command.replace("DATABASE shop", f"DATABASE {database}").replace("shop.", f"{database}.")
        return re.sub(r"\b(TO|FROM) ('functions'@'%'|functions)", rf"\1 {self.login}", named)

    def prepare(self) -> None:
        prefix = f"{self.schema}." if self.schema else ""
        self.run(*([f"CREATE SCHEMA {self.schema}"] if self.schema else []), *(each.format(prefix) for each in TABLES))
        for part in PARTS:
            made = part(url=self.admin_url, schema=self.schema, engine_provider=(provider := EngineProvider())).ddl()
            self.run(*(piece for piece in made.split(";") if piece.strip()))
            provider.dispose_all()
        self.run(*statements(self.dialect))

    @contextmanager
    def without(self, right: str, place: str) -> Iterator[None]:
        self.run(f"REVOKE {right} ON {place} FROM functions")
        try:
            yield
        finally:
            self.run(f"GRANT {right} ON {place} TO functions")

    def empty(self) -> None:
        prefix = f"{self.schema}." if self.schema else ""
        kept = ("orders", "shipments", "azfdb_state", "azfdb_quarantine", "azfdb_processed", "azfdb_delivered")
        self.run(*(f"DELETE FROM {prefix}{name}" for name in kept))

    def sell(self, *numbers: int) -> None:
        prefix = f"{self.schema}." if self.schema else ""
        self.run(*(f"INSERT INTO {prefix}orders VALUES ({number}, {number}, 'x')" for number in numbers))


@contextmanager
def postgres(url: str) -> Iterator[Shop]:
    role, password = f"functions_{secrets.token_hex(4)}", secrets.token_hex(8)
    shop = Shop(url, "postgresql", "sales", role, role)
    shop.run(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
    shop.url = make_url(url).set(username=role, password=password).render_as_string(hide_password=False)
    try:
        shop.prepare()
        yield shop
    finally:
        shop.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@contextmanager
def mariadb(url: str) -> Iterator[Shop]:
    role, password = f"functions_{secrets.token_hex(4)}", secrets.token_hex(8)
    shop = Shop(url, "mysql", None, role, f"'{role}'@'%'")
    shop.run(f"CREATE USER {shop.login} IDENTIFIED BY '{password}'")
    shop.url = make_url(url).set(username=role, password=password).render_as_string(hide_password=False)
    try:
        shop.prepare()
        yield shop
    finally:
        shop.run(f"DROP USER {shop.login}")


@pytest.fixture(scope="module")
def postgres_of_module(postgres_url: str) -> Iterator[Shop]:
    with temporary_database(postgres_url, "DROP DATABASE {name} WITH (FORCE)") as url, postgres(url) as shop:
        yield shop


@pytest.fixture(scope="module")
def mariadb_of_module(mariadb_url: str) -> Iterator[Shop]:
    with temporary_database(mariadb_url, "DROP DATABASE {name}") as url, mariadb(url) as shop:
        yield shop


@pytest.fixture
def postgres_shop(postgres_of_module: Shop) -> Iterator[Shop]:
    yield postgres_of_module
    postgres_of_module.empty()


@pytest.fixture
def mariadb_shop(mariadb_of_module: Shop) -> Iterator[Shop]:
    yield mariadb_of_module
    mariadb_of_module.empty()


class App:
    """Everything of the library that a login may be asked for."""

    def __init__(self, shop: Shop) -> None:
        self.provider = EngineProvider()
        place: dict[str, Any] = {"url": shop.url, "schema": shop.schema, "engine_provider": self.provider}
        self.shop = shop
        self.source = SqlAlchemySource(table="orders", cursor_column="version", pk_columns=["id"], **place)
        self.store = SqlStateStore(**place)
        self.sink = SqlQuarantine(**place)
        self.processed = ProcessedLedger(**place)
        self.delivered = DeliveredLedger(**place)
        self.customers = DbReader(table="customers", **place)
        self.shipments = DbWriter(table="shipments", **place)
        self.events: list[RowChange] = []
        self.poller = PollTrigger(
            name="orders", source=self.source, checkpoint_store=self.store, quarantine=self.sink, max_attempts=1
        )

    def work(self) -> None:
        """Do all that an app does in its life; an error, or a promise that is not kept, ends it."""
        for numbers in (range(1, 15), range(15, 20)):
            self.shop.sell(*numbers)
            self.poller.run(timer=None, handler=self.handle)
        [late_commits] = [finding for finding in self.source.checkup() if finding.check == "late commits"]
        assert late_commits.text.startswith("exact: ")
        [entry] = self.sink.entries()
        self.sink.remove(entry.poller_name, entry.event_id)
        self.delivered.note("orders", self.events)
        assert self.delivered.missing("orders", self.events) == []
        self.shipments.update(data={"note": "sent"}, pk={"id": 3})
        self.shipments.delete(pk={"id": 3})
        for ledger in (self.processed, self.delivered):
            ledger.prune(dt.timedelta(days=-1))

    def handle(self, events: list[RowChange]) -> None:
        if any(event.pk["id"] == 2 for event in events):
            raise ValueError("cannot digest 2")
        with self.processed.once(events) as new:
            self.customers.get(pk={"id": 1})
            self.shipments.upsert_many(rows=[{"id": each.pk["id"]} for each in new], conflict_columns=["id"])
        self.events += events


@contextmanager
def app_of(shop: Shop) -> Iterator[App]:
    app = App(shop)
    try:
        yield app
    finally:
        app.provider.dispose_all()


def test_the_rights_of_the_page_suffice_on_postgresql(postgres_shop: Shop) -> None:
    with app_of(postgres_shop) as app:
        app.work()


def test_the_rights_of_the_page_suffice_on_mariadb(mariadb_shop: Shop) -> None:
    with app_of(mariadb_shop) as app:
        app.work()


@pytest.mark.parametrize(("right", "place"), single_rights("postgresql"))
def test_without_any_one_of_them_it_does_not_work_on_postgresql(postgres_shop: Shop, right: str, place: str) -> None:
    with postgres_shop.without(right, place), app_of(postgres_shop) as app, pytest.raises((DbError, AssertionError)):
        app.work()


@pytest.mark.parametrize(("right", "place"), single_rights("mysql"))
def test_without_any_one_of_them_it_does_not_work_on_mariadb(mariadb_shop: Shop, right: str, place: str) -> None:
    with mariadb_shop.without(right, place), app_of(mariadb_shop) as app, pytest.raises((DbError, AssertionError)):
        app.work()


def permissions(what: str) -> str:
    """Return the SAS permissions that the page's table gives to a part."""
    [found] = re.findall(rf"^\| `{what}`.* \| `(\w+)` \|$", PAGE, re.MULTILINE)
    return str(found)


def each_left_out(letters: str) -> list[str]:
    return [letters.replace(letter, "") for letter in letters]


IN_AN_HOUR = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)


def container_with(azurite: str, container: str, letters: str) -> ContainerClient:
    with BlobServiceClient.from_connection_string(azurite) as service:
        signature = generate_container_sas(
            str(service.account_name),
            container,
            account_key=service.credential.account_key,
            permission=ContainerSasPermissions.from_string(letters),
            expiry=IN_AN_HOUR,
        )
        return ContainerClient(service.url, container, credential=signature, retry_total=0)


def keep_state(store: Any) -> None:
    lease = store.acquire_lease("orders", 60)
    store.commit_checkpoint("orders", {"cursor": 1}, lease)
    store.release_lease("orders", lease)
    assert store.load_checkpoint("orders")["cursor"] == 1


def keep_rows(sink: BlobQuarantine) -> None:
    row = QuarantinedRow("orders", "e1", {}, "ValueError", "bad", 1, "b1", dt.datetime.now(dt.UTC))
    for _ in range(2):
        sink.put([row])
    assert list(sink.entries()) == [row]
    sink.remove("orders", "e1")
    assert list(sink.entries()) == []


def test_the_permissions_of_the_page_suffice_for_blobs(azurite: str, blob_container: str) -> None:
    with container_with(azurite, blob_container, permissions("BlobCheckpointStore")) as client:
        keep_state(BlobCheckpointStore(container_client=client))
    with container_with(azurite, blob_container, permissions("azfdb status")) as client:
        store = BlobCheckpointStore(container_client=client)
        assert store.load_checkpoint("orders")["cursor"] == 1
        assert list(store.poller_names()) == ["orders"]
    with container_with(azurite, blob_container, permissions("BlobQuarantine")) as client:
        keep_rows(BlobQuarantine(container_client=client))


@pytest.mark.parametrize("letters", each_left_out(permissions("BlobCheckpointStore")))
def test_without_any_one_of_them_a_blob_store_does_not_work(azurite: str, blob_container: str, letters: str) -> None:
    with container_with(azurite, blob_container, letters) as client, pytest.raises(DbError):
        keep_state(BlobCheckpointStore(container_client=client))


@pytest.mark.parametrize("letters", each_left_out(permissions("BlobQuarantine")))
def test_without_any_one_of_them_a_quarantine_does_not_work(azurite: str, blob_container: str, letters: str) -> None:
    with container_with(azurite, blob_container, letters) as client, pytest.raises(DbError):
        keep_rows(BlobQuarantine(container_client=client))


@pytest.fixture
def table_name(azurite: str) -> Iterator[str]:
    name = f"test{secrets.token_hex(8)}"
    with TableServiceClient.from_connection_string(azurite) as service:
        service.create_table(name)
        yield name
        service.delete_table(name)


def table_with(azurite: str, name: str, letters: str) -> TableClient:
    told = dict(part.split("=", 1) for part in azurite.split(";"))
    key = AzureNamedKeyCredential(told["AccountName"], told["AccountKey"])
    allowed = {"read": "r" in letters, "add": "a" in letters, "update": "u" in letters}
    signature = generate_table_sas(key, name, permission=TableSasPermissions(**allowed), expiry=IN_AN_HOUR)
    return TableClient(told["TableEndpoint"], name, credential=AzureSasCredential(signature), retry_total=0)


def test_the_permissions_of_the_page_suffice_for_tables(azurite: str, table_name: str) -> None:
    with table_with(azurite, table_name, permissions("TableStateStore")) as client:
        keep_state(TableStateStore(table_client=client))


@pytest.mark.parametrize("letters", each_left_out(permissions("TableStateStore")))
def test_without_any_one_of_them_a_table_store_does_not_work(azurite: str, table_name: str, letters: str) -> None:
    with table_with(azurite, table_name, letters) as client, pytest.raises(DbError):
        keep_state(TableStateStore(table_client=client))
