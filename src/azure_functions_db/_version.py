"""The version of the package, its only home."""

__version__ = "1.0.0.dev0"
