"""Plays the shop: `python shop.py` places an order and pays the one before it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

# Every change of a row gets the next version: that is the cursor that the poller follows.
NEXT = "(SELECT coalesce(max(version), 0) + 1 FROM orders)"

shop = sqlite3.connect(Path(__file__).with_name("shop.db"))
with shop:
    shop.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, status TEXT, version INTEGER)")
    shop.execute("CREATE INDEX IF NOT EXISTS orders_by_version ON orders (version, id)")
    shop.execute(f"UPDATE orders SET status = 'paid', version = {NEXT} WHERE id = (SELECT max(id) FROM orders)")
    placed = shop.execute(f"INSERT INTO orders (status, version) VALUES ('new', {NEXT})").lastrowid
shop.close()
print(f"order {placed} placed")
