-- In SHOP_DB:
CREATE TABLE orders (id INTEGER PRIMARY KEY, status VARCHAR(20) NOT NULL, version BIGINT NOT NULL);
CREATE INDEX orders_by_version ON orders (version, id);
-- In SHIPPING_DB:
CREATE TABLE parcels (order_id INTEGER NOT NULL, version BIGINT NOT NULL, poller VARCHAR(100) NOT NULL);
