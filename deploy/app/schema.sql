-- Run by infra/grant.sh, as often as one likes; :app is the login of the function app.
CREATE TABLE IF NOT EXISTS orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS orders_by_updated_at ON orders (updated_at, id);

CREATE TABLE IF NOT EXISTS parcels (
    order_id bigint PRIMARY KEY,
    customer text NOT NULL
);

REVOKE CONNECT ON DATABASE :"database" FROM PUBLIC;
GRANT CONNECT ON DATABASE :"database" TO :"app";
GRANT USAGE ON SCHEMA public TO :"app";
GRANT SELECT ON orders TO :"app";
GRANT SELECT, INSERT, UPDATE ON parcels TO :"app";
