"""SQL databases: engines, pools, logins, reflection, transactions, and what their drivers' errors mean."""
