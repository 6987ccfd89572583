"""PostgreSQL's write-ahead log as a change source."""
