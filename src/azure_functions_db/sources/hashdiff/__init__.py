"""Changes found by comparing a table with a snapshot of its keys and hashes."""
