-- In MySQL or MariaDB, the source. The target needs id, name and price, with id as its primary key.
CREATE TABLE products (
    id INTEGER PRIMARY KEY,
    name VARCHAR(50) NOT NULL,
    price DECIMAL(10, 2) NOT NULL
)
