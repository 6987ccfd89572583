"""Places in the write-ahead log."""

from __future__ import annotations


def lsn_of(text: str) -> int:
    """Return the place that PostgreSQL writes like ``0/16B3748``."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(lsn: int) -> str:
    """Return a place as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
