"""Azure Storage: accounts and credentials, and what its errors mean."""
