CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL);
-- The warehouse may be another database. No unique key on order_id: a parcel that is packed twice would be there twice.
CREATE TABLE parcels (number SERIAL PRIMARY KEY, order_id INTEGER NOT NULL, item TEXT NOT NULL);
