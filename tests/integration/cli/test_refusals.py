"""What goes wrong on each kind of database and store is one line, a code for scripts, and nothing changed."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import make_url

from azure_functions_db.cli.options import Exit
from tests.integration.cli.commands import CHANGES, COMMANDS, QUARANTINE, SAVED, SOURCE, STATE, Command
from tests.integration.cli.shelves import Tables
from tests.support import visitors

if TYPE_CHECKING:
    from tests.integration.cli.shops import Outcome, Shop

    Weather = Callable[[Shop], AbstractContextManager["Trouble"]]

SECRETS = (visitors.PASSWORD, "AccountKey", "sig=")


@dataclass
class Trouble:
    """What is broken or may only be read, and the settings that make it so."""

    broken: set[str] = field(default_factory=set)
    read_only: set[str] = field(default_factory=set)
    settings: dict[str, str] = field(default_factory=dict)


@contextmanager
def files_in_the_way(shop: Shop) -> Iterator[Trouble]:
    """Where a folder should be there is a file."""
    folders = [shop.folder / "state", shop.folder / "quarantine"]
    for folder in folders:
        folder.rename(folder.with_suffix(".aside"))
        folder.touch()
    yield Trouble({STATE, QUARANTINE})
    for folder in folders:
        folder.unlink()
        folder.with_suffix(".aside").rename(folder)


@contextmanager
def modes(shop: Shop, folder_mode: int, file_mode: int) -> Iterator[None]:
    found = [
        path for name in ("state", "quarantine") for path in [shop.folder / name, *(shop.folder / name).rglob("*")]
    ]
    # From the inside out: nothing can be changed in a folder that cannot be entered.
    before = [(path, path.stat().st_mode) for path in reversed(found)]
    for path, _ in before:
        path.chmod(folder_mode if path.is_dir() else file_mode)
    yield
    for path, mode in reversed(before):
        path.chmod(mode)


@contextmanager
def unreadable_files(shop: Shop) -> Iterator[Trouble]:
    with modes(shop, 0o000, 0o000):
        yield Trouble({STATE, QUARANTINE})


@contextmanager
def read_only_files(shop: Shop) -> Iterator[Trouble]:
    with modes(shop, 0o555, 0o444):
        yield Trouble(read_only={STATE, QUARANTINE})


@contextmanager
def unreadable_database_file(shop: Shop) -> Iterator[Trouble]:
    path = Path(str(make_url(shop.database).database))
    path.chmod(0o000)
    yield Trouble({SOURCE})
    path.chmod(0o644)


@contextmanager
def closed_port(shop: Shop) -> Iterator[Trouble]:
    yield Trouble({SOURCE}, settings={"SHOP_DB": nobody_at(shop.database)})


@contextmanager
def no_right_to_the_table(shop: Shop) -> Iterator[Trouble]:
    with visitors.visitor(shop.database) as url:
        yield Trouble({SOURCE}, settings={"SHOP_DB": url})


@contextmanager
def dead_storage(shop: Shop) -> Iterator[Trouble]:
    yield Trouble({STATE, QUARANTINE}, settings={"SHOP_STORAGE": visitors.unanswered(shop.settings["SHOP_STORAGE"])})


@contextmanager
def wrong_account_key(shop: Shop) -> Iterator[Trouble]:
    wrong = visitors.with_wrong_key(shop.settings["SHOP_STORAGE"])
    yield Trouble({STATE, QUARANTINE}, settings={"SHOP_STORAGE": wrong})


@contextmanager
def signature_for_reading(shop: Shop) -> Iterator[Trouble]:
    container = shop.store_url.rpartition("/")[2]
    signed = visitors.for_readers(shop.settings["SHOP_STORAGE"], container)
    yield Trouble(read_only={STATE, QUARANTINE}, settings={"SHOP_STORAGE": signed})


@contextmanager
def closed_state_port(shop: Shop) -> Iterator[Trouble]:
    yield Trouble({STATE, QUARANTINE}, settings={"SHOP_STATE": nobody_at(shop.database)})


@contextmanager
def no_right_to_the_state(shop: Shop) -> Iterator[Trouble]:
    with visitors.visitor(shop.database, "SELECT ON orders") as url:
        yield Trouble({STATE, QUARANTINE}, settings={"SHOP_STATE": url})


@contextmanager
def right_to_read_the_state(shop: Shop) -> Iterator[Trouble]:
    with visitors.visitor(shop.database, "SELECT ON azfdb_state", "SELECT ON bad_rows") as url:
        yield Trouble(read_only={STATE, QUARANTINE}, settings={"SHOP_STATE": url})


def nobody_at(url: str) -> str:
    return make_url(url).set(port=9, password=visitors.PASSWORD).render_as_string(hide_password=False)


TROUBLES = {
    "sqlite_and_files": [files_in_the_way, unreadable_files, read_only_files, unreadable_database_file],
    "postgres_and_blobs": [dead_storage, wrong_account_key, signature_for_reading, closed_port, no_right_to_the_table],
    "mariadb_and_its_tables": [
        closed_state_port,
        no_right_to_the_state,
        right_to_read_the_state,
        closed_port,
        no_right_to_the_table,
    ],
}
CASES = [
    pytest.param(kind, trouble, id=f"{kind}-{trouble.__name__}") for kind, all_ in TROUBLES.items() for trouble in all_
]


@pytest.mark.parametrize(("any_shop", "trouble"), CASES, indirect=["any_shop"])
def test_what_cannot_be_reached_or_is_not_allowed(used_shop: Shop, trouble: Weather) -> None:
    shop = used_shop
    shop.azfdb("export", "orders", "--output", SAVED)
    entry = shop.azfdb("quarantine", "list", "--json").json["rows"][0]["event_id"]
    before = shop.shelf.contents()
    with trouble(shop) as found:
        for command in COMMANDS:
            words = tuple(entry if word == "ID" else word for word in command.words())
            if command.needs(found.broken, found.read_only):
                check_refusal(command, shop.azfdb(*words, **found.settings))
            elif not command.writes:
                told = shop.azfdb(*words, **found.settings)
                assert (told.code, "azfdb: " in told.err) == (0, False), ("what only reads goes on", command.line, told)
    assert shop.shelf.contents() == before


READ_ONLY = [
    pytest.param("sqlite_and_files", read_only_files, id="files"),
    pytest.param("postgres_and_blobs", signature_for_reading, id="blobs"),
    pytest.param("mariadb_and_its_tables", right_to_read_the_state, id="tables"),
]


@pytest.mark.parametrize(("any_shop", "trouble"), READ_ONLY, indirect=["any_shop"])
def test_a_replay_with_a_quarantine_that_may_only_be_read_calls_nobody(used_shop: Shop, trouble: Weather) -> None:
    shop = used_shop
    handled, before = shop.handled, shop.shelf.contents()
    with trouble(shop) as found:
        told = shop.azfdb("quarantine", "replay", "--all", **found.settings)
    assert (told.code, bool(told.complaint)) == (Exit.UNREACHABLE, True)
    assert shop.handled == handled
    assert shop.shelf.contents() == before
    assert shop.azfdb("quarantine", "replay", "--all").code == 0
    assert len(shop.handled) > len(handled)


def check_refusal(command: Command, told: Outcome, code: int = Exit.UNREACHABLE) -> None:
    assert told.code == (Exit.FAILED if command.is_report else code), (command.line, told)
    if not command.is_report:
        assert told.complaint, command.line
    assert "Traceback" not in told.err, command.line
    assert not any(secret in told.out + told.err for secret in SECRETS), (command.line, told)


UNREACHABLE_STORES = {
    "sqlite_and_files": ("file:///nowhere/at/all", Exit.MISCONFIGURED),
    "postgres_and_blobs": ("azureblob://SHOP_STORAGE/any", Exit.UNREACHABLE),
    "mariadb_and_its_tables": ("mysql+pymysql://somebody:hush@127.0.0.1:9/shop", Exit.UNREACHABLE),
}


@pytest.mark.parametrize("kind", UNREACHABLE_STORES)
def test_a_store_by_its_url_that_does_not_answer(shop: Shop, azurite: str, kind: str) -> None:
    url, code = UNREACHABLE_STORES[kind]
    (shop.folder / SAVED).write_text('{"cursor": 1}')
    for command in COMMANDS:
        if command.takes_store:
            told = shop.azfdb(*command.words(), "--store", url, SHOP_STORAGE=visitors.unanswered(azurite))
            check_refusal(replace(command, is_report=False), told, code)
    assert not (shop.folder / ".azfdb").exists()


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(shop: Shop) -> None:
    shop.shelf.store.reset_to_beginning("orders")
    with modes(shop, 0o000, 0o000):
        for command in (("status", "--store", shop.store_url), ("quarantine", "list", "--quarantine", shop.sink_url)):
            told = shop.azfdb(*command)
            assert (told.code, "Permission denied" in told.complaint) == (Exit.UNREACHABLE, True)


def test_a_person_does_not_wait_long_for_blob_storage(shop: Shop, azurite: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf, ThreadPoolExecutor() as aside:
        port = deaf.getsockname()[1]
        calls = aside.submit(hung_up_calls, deaf)
        storage = visitors.unanswered(azurite).replace(":9/", f":{port}/")
        told = shop.azfdb("inspect", "orders", "--store", "azureblob://SHOP_STORAGE/any", SHOP_STORAGE=storage)
        deaf.shutdown(socket.SHUT_RD)
        assert (told.code, calls.result()) == (Exit.UNREACHABLE, 2), "once, and once more"


def hung_up_calls(server: socket.socket) -> int:
    """Count the calls that are taken and ended at once, until the server is shut down."""
    count = 0
    while True:
        try:
            caller, _ = server.accept()
        except OSError:
            return count
        caller.close()
        count += 1


@pytest.mark.parametrize("database", ["postgres_database", "mariadb_database"])
def test_a_store_by_its_url_that_may_only_be_read(shop: Shop, request: pytest.FixtureRequest, database: str) -> None:
    url = request.getfixturevalue(database)
    shelf = Tables(url, "azfdb_state")
    shelf.store.reset_to_cursor("orders", 2, {"id": 2})
    (shop.folder / SAVED).write_text('{"cursor": 1}')
    before = shelf.contents()
    with visitors.visitor(url, "SELECT ON azfdb_state") as read_only:
        for command in COMMANDS:
            if command.takes_store:
                told = shop.azfdb(*command.words(), "--store", read_only)
                if command.writes:
                    check_refusal(command, told)
                else:
                    assert told.code == 0, (command.line, told)
    assert shelf.contents() == before


def test_a_poller_that_is_not_there(used_shop: Shop) -> None:
    before = used_shop.shelf.contents()
    (used_shop.folder / SAVED).write_text('{"cursor": 1}')
    for command in COMMANDS:
        words = [*command.words("nobody"), *(["--store", used_shop.store_url] if command.takes_store else [])]
        for given in (command.words("nobody"), words):
            told = used_shop.azfdb(*given)
            check_refusal(replace(command, is_report=False), told, Exit.MISCONFIGURED)
            assert "There is no poller 'nobody'; there are: orders" in told.complaint or "ID" in given
    assert used_shop.shelf.contents() == before


def test_a_function_that_is_not_there(used_shop: Shop) -> None:
    told = used_shop.azfdb("run", "--once", "nobody")
    assert (told.code, told.complaint) == (
        Exit.MISCONFIGURED,
        "azfdb: The app has no timer function 'nobody'; it has: on_orders [AZFDB-100]",
    )


def test_a_live_lease(used_shop: Shop) -> None:
    (used_shop.folder / SAVED).write_text('{"cursor": 1}')
    for poller in ("orders", "copy"):
        used_shop.shelf.store.acquire_lease(poller, 60)
    before = used_shop.shelf.contents()
    for command in CHANGES:
        told = used_shop.azfdb(*command.words())
        check_refusal(command, told, Exit.LEASE_HELD)
        assert "lease" in told.complaint
    assert used_shop.shelf.contents() == before
    assert not (used_shop.folder / ".azfdb/backups").exists()
    for command in CHANGES:
        used_shop.shelf.store.break_lease("orders")
        used_shop.shelf.store.acquire_lease("orders", 60)
        held = used_shop.shelf.contents()
        assert used_shop.azfdb(*command.words(), "--force").code == 0, command.line
        assert used_shop.shelf.contents() != held


def test_a_backfill_that_another_process_runs(used_shop: Shop) -> None:
    used_shop.shelf.store.acquire_lease("again", 60)
    before = used_shop.shelf.contents()
    told = used_shop.azfdb("backfill", "orders", "--as", "again")
    assert (told.code, "Another process runs the backfill" in told.complaint) == (Exit.LEASE_HELD, True)
    assert used_shop.shelf.contents() == before


def test_nothing_is_changed_without_a_confirmation(used_shop: Shop) -> None:
    (used_shop.folder / SAVED).write_text('{"cursor": 1}')
    before = used_shop.shelf.contents()
    for command in [each for each in COMMANDS if "--yes" in each.line]:
        told = used_shop.azfdb(*(word for word in command.words() if word != "--yes"), stdin="orders\n")
        check_refusal(command, told, Exit.USAGE)
        assert "add --yes" in told.complaint
    assert used_shop.shelf.contents() == before


WRONG_FILES = {
    "": "cannot be read",
    "[1, 2": "cannot be read",
    "[]": "holds no checkpoint",
    '{"version": 99, "poller_name": "orders"}': "version 99",
    '{"version": 1, "poller_name": "orders", "lease": null}': "no checkpoint",
}


def test_a_file_that_is_no_checkpoint(used_shop: Shop) -> None:
    before = used_shop.shelf.contents()
    command = ("reset", "orders", "--to-checkpoint", SAVED, "--yes", "--force")
    missing = used_shop.azfdb(*command)
    assert (missing.code, "No such file" in missing.complaint) == (Exit.MISCONFIGURED, True)
    for content, reason in WRONG_FILES.items():
        (used_shop.folder / SAVED).write_text(content)
        told = used_shop.azfdb(*command)
        assert told.code != 0
        assert reason in told.complaint
    assert used_shop.azfdb("export", "orders", "--output", SAVED).code == Exit.MISCONFIGURED, "it is not overwritten"
    assert used_shop.shelf.contents() == before
