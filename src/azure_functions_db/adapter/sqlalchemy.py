"""Where users import `SqlAlchemySource` from."""

from azure_functions_db.sources.keyset.source import SqlAlchemySource

__all__ = ["SqlAlchemySource"]
