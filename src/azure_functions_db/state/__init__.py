"""State stores: where the checkpoint and the lease of a poller live."""
