"""Polling by keyset: rows after a cursor and a key, in any database that SQLAlchemy reaches."""
