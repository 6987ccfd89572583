"""What every other part stands on; knows nobody else in the package."""
