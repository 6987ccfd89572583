"""The azfdb command line."""
