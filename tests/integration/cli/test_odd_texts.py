"""Rows, keys, names and errors may hold anything; a terminal or a pipe is shown it, and does not obey it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from tests.integration.cli.commands import COMMANDS, SAVED
from tests.integration.cli.test_screens import CODES, on_terminal

if TYPE_CHECKING:
    from tests.integration.cli.commands import Command
    from tests.integration.cli.shops import Shop

ODD = "[/x][bold]\x1b[2J\x9b1m\u202ecod\x07"
NAME = "[/x][red]\u202eorders"
LINES = [command for command in COMMANDS if "verify" not in command.line]


@pytest.fixture
def odd_shop(shop: Shop) -> Shop:
    """A shop whose poller, keys, values and errors are made to break screens."""
    app = shop.folder / "function_app.py"
    app.write_text(
        app.read_text()
        .replace('name="orders"', f"name={NAME!r}")
        .replace("cannot digest {event.pk['id']}", "cannot digest {event.after['note']}")
        .replace('pk_columns=["id"]', 'pk_columns=["id", "[/x]"]')
    )
    with shop.engine.begin() as connection:
        connection.execute(text("DROP TABLE orders"))
        connection.execute(
            text('CREATE TABLE orders (id INTEGER, version INTEGER, note VARCHAR(50), "[/x]" VARCHAR(50))')
        )
        connection.execute(text('CREATE UNIQUE INDEX orders_by_version ON orders (version, id, "[/x]")'))
        rows = [{"id": number, "version": number, "odd": ODD} for number in range(1, 6)]
        connection.execute(text("INSERT INTO orders VALUES (:id, :version, :odd, :odd)"), rows)
    shop.tick(REFUSED="2", MAX_ATTEMPTS="1")
    (shop.folder / SAVED).write_text(shop.azfdb("export", NAME).out)
    return shop


def words_of(shop: Shop, command: Command) -> list[str]:
    [listed] = json.loads(shop.azfdb("quarantine", "list", "--json").out)["rows"]
    known = {"orders": NAME, "ID": listed["event_id"]}
    found = [known.get(word, word) for word in command.line.split()]
    return [*found, "--pk", f"[/x]={ODD}"] if "--pk" in found else found


@pytest.mark.parametrize("command", LINES, ids=lambda command: command.line)
def test_nothing_odd_breaks_a_command_or_steers_its_reader(odd_shop: Shop, command: Command) -> None:
    done = odd_shop.azfdb(*words_of(odd_shop, command))
    assert "Traceback" not in done.err
    assert done.code in {0, 1}
    told = done.out + done.err
    assert all(line.isprintable() for line in told.splitlines())
    assert not re.search(r"[\x1b\x9b\u202e]", told)


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("line", ["tail orders", "status orders", "quarantine list --poller orders"])
def test_a_terminal_shows_odd_texts_escaped_and_as_they_are(odd_shop: Shop, line: str, columns: int) -> None:
    code, drawn = on_terminal(odd_shop, columns, *(NAME if word == "orders" else word for word in line.split()))
    assert code in {0, 1}
    shown = "".join(CODES.sub("", part) for part in drawn)
    assert shown.isprintable()
    assert "[/x][" in shown
    assert "\\u202e" in shown


def test_a_bar_takes_any_name(odd_shop: Shop) -> None:
    code, drawn = on_terminal(odd_shop, 120, "backfill", NAME, "--as", "[/x]again")
    assert code == 0, drawn
    assert any("[/x]again" in line for line in drawn)


def test_json_is_escaped_and_says_what_is_there(odd_shop: Shop) -> None:
    done = odd_shop.azfdb("quarantine", "list", "--json")
    assert done.out.isascii()
    [row] = json.loads(done.out)["rows"]
    assert row["event"]["after"]["note"] == ODD
    assert row["poller_name"] == NAME


def test_a_complaint_is_one_harmless_line(odd_shop: Shop) -> None:
    done = odd_shop.azfdb("inspect", f"nobody\x1b[2J\u202e\n{NAME}")
    assert done.complaint.isprintable()
    assert "\\x1b[2J\\u202e" in done.complaint
