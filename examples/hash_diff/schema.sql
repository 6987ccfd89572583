CREATE TABLE customers (number INTEGER PRIMARY KEY, name VARCHAR(100), city VARCHAR(100), last_seen VARCHAR(40) DEFAULT now());
CREATE TABLE customers_mirror (number INTEGER PRIMARY KEY, name VARCHAR(100), city VARCHAR(100));
