"""Readers and writers that functions use to reach a database."""
