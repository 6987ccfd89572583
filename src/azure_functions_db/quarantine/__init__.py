"""Where rows go that the handler cannot digest: files, a SQL table, blobs."""

from azure_functions_db.quarantine.blob import BlobQuarantine
from azure_functions_db.quarantine.file import FileQuarantine
from azure_functions_db.quarantine.sql import SqlQuarantine

__all__ = ["BlobQuarantine", "FileQuarantine", "SqlQuarantine"]
