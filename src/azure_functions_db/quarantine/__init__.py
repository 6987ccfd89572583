"""Where rows go that the handler cannot digest: files, a SQL table, blobs."""

from azure_functions_db.quarantine.blob_sink import BlobQuarantine
from azure_functions_db.quarantine.file_sink import FileQuarantine
from azure_functions_db.quarantine.sql_sink import SqlQuarantine

__all__ = ["BlobQuarantine", "FileQuarantine", "SqlQuarantine"]
