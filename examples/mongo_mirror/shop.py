"""Plays the shop: `python shop.py` with `fill`, `change` or `renew` changes the collection, with `count` counts it."""

from __future__ import annotations

import os
import sys

from bson import Decimal128, ObjectId
from pymongo import MongoClient

KEYS = [ObjectId(f"{number:024x}") for number in range(20)]

with MongoClient(os.environ["SHOP_MONGO"]) as client:
    products = client["shop"]["products"]
    match sys.argv[1]:
        case "fill":
            products.insert_many([{"_id": key, "name": "a", "price": Decimal128("1.50")} for key in KEYS])
        case "change":
            products.update_many({"_id": {"$lt": KEYS[3]}}, {"$set": {"price": Decimal128("0.00")}})
            products.delete_many({"_id": {"$gt": KEYS[10]}})
        case "renew":
            products.drop()
            products.insert_one({"_id": KEYS[0], "name": "b", "price": Decimal128("2.00")})
        case "count":
            prices = [each["price"].to_decimal() for each in products.find().sort("_id")]
            print(f"{len(prices)}|{sum(prices)}")
