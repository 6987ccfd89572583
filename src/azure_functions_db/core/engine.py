"""Where users import `EngineProvider` from."""

from azure_functions_db.sql.engine import EngineProvider

__all__ = ["EngineProvider"]
