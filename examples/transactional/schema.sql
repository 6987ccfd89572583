CREATE TABLE sales (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL);
-- No unique key on sale_id: a sale that is booked twice would be there twice.
CREATE TABLE ledger (entry SERIAL PRIMARY KEY, sale_id INTEGER NOT NULL, amount INTEGER NOT NULL);
