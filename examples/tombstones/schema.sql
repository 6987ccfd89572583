CREATE SEQUENCE product_versions;
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL, version BIGINT NOT NULL DEFAULT nextval('product_versions'));
CREATE INDEX ix_products_version ON products (version, id);
CREATE TABLE products_tombstones (id INTEGER PRIMARY KEY, version BIGINT NOT NULL DEFAULT nextval('product_versions'));
CREATE INDEX ix_products_tombstones_version ON products_tombstones (version, id);
CREATE TABLE search_index (id INTEGER PRIMARY KEY, name TEXT NOT NULL);

CREATE FUNCTION product_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.version := nextval('product_versions');
    DELETE FROM products_tombstones WHERE id = NEW.id;
    RETURN NEW;
END $$;
CREATE TRIGGER product_changed BEFORE INSERT OR UPDATE ON products FOR EACH ROW EXECUTE FUNCTION product_changed();

CREATE FUNCTION product_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO products_tombstones (id) VALUES (OLD.id);
    RETURN OLD;
END $$;
CREATE TRIGGER product_deleted AFTER DELETE ON products FOR EACH ROW EXECUTE FUNCTION product_deleted();
