"""Decorators that bind functions to databases: change triggers, inputs, outputs and clients."""

from __future__ import annotations

from azure_functions_db.decorator.bindings import DbBindings
from azure_functions_db.decorator.composition import get_db_metadata
from azure_functions_db.decorator.injection import AsyncDbOut, DbOut

__all__ = ["AsyncDbOut", "DbBindings", "DbOut", "get_db_metadata"]
