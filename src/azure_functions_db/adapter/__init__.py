"""Change sources: where changes come from."""
