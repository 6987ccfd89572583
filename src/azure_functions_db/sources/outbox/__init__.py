"""A transactional outbox: a table that a service writes its events to, in the transaction of what they tell of."""
