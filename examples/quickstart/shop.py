"""Plays the shop: `python shop.py` places an order and pays the one before it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

# Every change of a row gets the next version: that is the cursor that the poller follows.
COUNT = "UPDATE versions SET newest = newest + 1"
PAY = """
    UPDATE orders SET status = 'paid', version = (SELECT newest FROM versions)
    WHERE id = (SELECT max(id) FROM orders)
"""
PLACE = "INSERT INTO orders (status, version) SELECT 'new', newest FROM versions"

shop = sqlite3.connect(Path(__file__).with_name("shop.db"))
with shop:
    shop.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, status TEXT, version INTEGER)")
    shop.execute("CREATE INDEX IF NOT EXISTS orders_by_version ON orders (version, id)")
    shop.execute("CREATE TABLE IF NOT EXISTS versions (newest INTEGER NOT NULL)")
    shop.execute("INSERT INTO versions SELECT 0 WHERE NOT EXISTS (SELECT * FROM versions)")
    if shop.execute("SELECT * FROM orders").fetchone():
        shop.execute(COUNT)
        shop.execute(PAY)
    shop.execute(COUNT)
    placed = shop.execute(PLACE).lastrowid
shop.close()
print(f"order {placed} placed")
