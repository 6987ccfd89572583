"""The tick: fetches changes, calls the handler and commits the checkpoint under a lease."""
