"""The names under which the keyset source was first known."""
