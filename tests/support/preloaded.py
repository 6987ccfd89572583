"""Loads whatever the processes of `nursery` are for; nobody else imports it."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import sys

sys.dont_write_bytecode = True
"""What a test writes anew within the second, in the same length, would be taken for what was there before."""

_PACKAGES = ("cli", "operations", "sources.keyset", "sql", "state", "trigger")
_MODULES = (
    "azure.core.rest._requests_basic",
    "azure.functions",
    "azure.storage.blob",
    "azure_functions_db.decorator",
    "azure_functions_db.ledger",
    "azure_functions_db.quarantine",
    "cronsim",
    "encodings.utf_8_sig",
    "netrc",
    "psycopg",
    "pydantic.fields",
    "pydantic.main",
    "pydantic.type_adapter",
    "pymysql",
    "rich.console",
    "rich.table",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.ext.compiler",
    "sqlite3",
    "tests.chaos.poller",
    "tests.integration.cli.warm",
    "typer._adapters",
    "_strptime",
)


def _load() -> None:
    packages = [importlib.import_module(f"azure_functions_db.{name}") for name in _PACKAGES]
    ours = [f"{each.__name__}.{module.name}" for each in packages for module in pkgutil.iter_modules(each.__path__)]
    for module in (*ours, *_MODULES):
        importlib.import_module(module)


_load()
gc.freeze()  # nobody looks through all this again in every child
