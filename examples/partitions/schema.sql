CREATE TABLE orders (id INTEGER PRIMARY KEY, status VARCHAR(20) NOT NULL, version BIGINT NOT NULL);
CREATE INDEX orders_by_version ON orders (version, id);
CREATE TABLE handled (order_id INTEGER NOT NULL, version BIGINT NOT NULL, poller VARCHAR(100) NOT NULL);
