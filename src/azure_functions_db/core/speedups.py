"""The hottest loops in compiled form; None where they could not be built, and Python does the same more slowly."""

from __future__ import annotations

__all__ = ["speedups"]

try:
    from azure_functions_db.core import _speedups as speedups
except ImportError:
    speedups = None  # type: ignore[assignment]
