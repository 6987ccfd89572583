-- In the database that holds the copy. The collection has _id, name and price.
CREATE TABLE products (
    id VARCHAR(24) PRIMARY KEY,
    name VARCHAR(50) NOT NULL,
    price DECIMAL(10, 2) NOT NULL
)
