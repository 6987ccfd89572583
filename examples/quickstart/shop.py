"""Plays the shop: `python shop.py` places an order and pays the one before it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

# Every change of a row gets the next version: that is the cursor that the poller follows.
PAY = """
    UPDATE orders SET status = 'paid', version = (SELECT max(version) + 1 FROM orders)
    WHERE id = (SELECT max(id) FROM orders)
"""
PLACE = """
    INSERT INTO orders (status, version) SELECT 'new', coalesce(max(version), 0) + 1 FROM orders
"""

shop = sqlite3.connect(Path(__file__).with_name("shop.db"))
with shop:
    shop.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, status TEXT, version INTEGER)")
    shop.execute("CREATE INDEX IF NOT EXISTS orders_by_version ON orders (version, id)")
    shop.execute(PAY)
    placed = shop.execute(PLACE).lastrowid
shop.close()
print(f"order {placed} placed")
