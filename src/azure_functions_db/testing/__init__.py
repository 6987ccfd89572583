"""Contract suites, fakes and fault injection for tests of your own stores and sources."""
