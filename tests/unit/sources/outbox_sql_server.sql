-- table 1
CREATE TABLE shop.outbox (
	id UNIQUEIDENTIFIER NOT NULL,
	aggregatetype NVARCHAR(255) NOT NULL,
	aggregateid NVARCHAR(255) NOT NULL,
	type NVARCHAR(255) NOT NULL,
	payload NVARCHAR(max) NULL,
	headers NVARCHAR(max) NULL,
	created_at DATETIMEOFFSET NOT NULL DEFAULT SYSDATETIMEOFFSET(),
	sequence BIGINT NOT NULL IDENTITY,
	position ROWVERSION NOT NULL,
	PRIMARY KEY (sequence),
	UNIQUE (id)
);

-- table 2
CREATE INDEX ix_outbox_position ON shop.outbox (position, sequence);

-- write
INSERT INTO shop.outbox (id, aggregatetype, aggregateid, type, payload, headers) VALUES (@id, @aggregatetype, @aggregateid, @type, @payload, @headers);

-- first page
SELECT * FROM shop.outbox WHERE shop.outbox.position IS NOT NULL AND shop.outbox.position <= @azfdb_bound ORDER BY shop.outbox.position OFFSET 0 ROWS FETCH FIRST 1 ROWS ONLY;

-- next page
SELECT * FROM shop.outbox WHERE shop.outbox.position > @azfdb_p0 AND shop.outbox.position <= @azfdb_bound ORDER BY shop.outbox.position OFFSET 0 ROWS FETCH FIRST 1 ROWS ONLY;

-- rows to remove
SELECT shop.outbox.id, shop.outbox.aggregateid, shop.outbox.created_at, shop.outbox.sequence, shop.outbox.position FROM shop.outbox WHERE shop.outbox.position > @azfdb_p0 ORDER BY shop.outbox.position OFFSET 0 ROWS FETCH FIRST 1 ROWS ONLY;

-- remove
DELETE FROM shop.outbox WHERE shop.outbox.id IN (1);

-- clock
SELECT sysdatetimeoffset() AS sysdatetimeoffset_1;

-- count
SELECT count(*) AS count_1 FROM (SELECT * FROM shop.outbox WHERE shop.outbox.position > @azfdb_p0 ORDER BY shop.outbox.position OFFSET @param_1 ROWS FETCH FIRST 1 ROWS ONLY) AS azfdb_counted;

-- last row
SELECT TOP 1 shop.outbox.position FROM shop.outbox ORDER BY shop.outbox.position DESC;

-- row by number
SELECT TOP 1 shop.outbox.position FROM shop.outbox WHERE shop.outbox.sequence = @sequence_1 ORDER BY shop.outbox.position;

-- row by id
SELECT TOP 1 shop.outbox.position FROM shop.outbox WHERE shop.outbox.id = @id_1 ORDER BY shop.outbox.position;

-- row by time
SELECT TOP 1 shop.outbox.position FROM shop.outbox WHERE shop.outbox.created_at >= @created_at_1 ORDER BY shop.outbox.position;

