-- In SQL Server or Azure SQL, the source; `azfdb stream create mirror_products` then turns on change tracking.
-- The target needs id, name and price, with id as its primary key.
CREATE TABLE dbo.products (
    id INT NOT NULL PRIMARY KEY,
    name NVARCHAR(50) NOT NULL,
    price DECIMAL(10, 2) NOT NULL
)
