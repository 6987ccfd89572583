"""The change streams of MongoDB."""
