"""A first look at the core: one engine for one configuration, and a cursor that survives JSON."""

from __future__ import annotations

import json
import os
import tempfile
from datetime import UTC, datetime

from azure_functions_db import DbConfig, EngineProvider, __version__

with tempfile.TemporaryDirectory() as folder:
    os.environ["DEMO_FOLDER"] = folder
    config = DbConfig(connection_url="sqlite:///%DEMO_FOLDER%/demo.db")
    provider = EngineProvider()
    assert provider.get_engine(config) is provider.get_engine(config)  # noqa: S101
    with provider.get_engine(config).begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, updated_at TEXT)")
        connection.exec_driver_sql("INSERT INTO orders VALUES (1, ?)", (datetime.now(UTC).isoformat(),))
        rows = connection.exec_driver_sql("SELECT id, updated_at FROM orders").mappings().all()
    provider.dispose_all()
    print(f"azure-functions-db {__version__}: {json.dumps([dict(row) for row in rows])}")
