"""Change tracking of SQL Server."""
