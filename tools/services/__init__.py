"""Private PostgreSQL, MariaDB and Azurite instances for the tests of this checkout."""
