CREATE TABLE orders (id bigint PRIMARY KEY, status text NOT NULL, version bigint NOT NULL);
CREATE UNIQUE INDEX orders_by_version ON orders (version, id);
