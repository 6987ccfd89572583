"""Where changes come from; each kind of source is a package of its own."""
