"""Takes guards away one by one and tells which of them nobody missed: `make mutants`."""
