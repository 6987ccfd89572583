-- === bindings
INSERT INTO dbo.orders (id, name, total, at) VALUES (@P1, @P2, @P3, @P4)
GO
INSERT INTO dbo.orders (id, name) VALUES (@P1, @P2)
GO
MERGE INTO dbo.orders WITH (HOLDLOCK) target USING (SELECT CAST(@P1 AS INTEGER) AS id, CAST(@P2 AS NVARCHAR(50)) AS name) source ON (target.id = source.id) WHEN MATCHED THEN UPDATE SET target.name = source.name WHEN NOT MATCHED THEN INSERT (id, name) VALUES (source.id, source.name)
GO
UPDATE dbo.orders SET name = @P1 WHERE id = @P2
GO
DELETE FROM dbo.orders WHERE id = @P1
GO
INSERT INTO dbo.orders (id) VALUES (@P1)
GO
SELECT * FROM dbo.orders WHERE id = @P1
GO
SELECT id, name FROM dbo.orders WHERE id > @P1 ORDER BY id
GO
SELECT COUNT(*) FROM dbo.orders WHERE id > @P1
GO
SELECT id FROM dbo.orders WHERE id > @P1
GO
SELECT nothing FROM nowhere WHERE id = @P1
GO
-- === cursor polling
SELECT CAST(CAST(MIN_ACTIVE_ROWVERSION() AS BIGINT) - 1 AS BINARY(8))
GO
SELECT * 
FROM dbo.orders 
WHERE dbo.orders.version IS NOT NULL AND dbo.orders.version <= @P1 ORDER BY dbo.orders.version, dbo.orders.id
 OFFSET 0 ROWS
 FETCH FIRST 3 ROWS ONLY
GO
SELECT * 
FROM dbo.orders 
WHERE dbo.orders.version >= @P1 AND (dbo.orders.version > @P2 OR dbo.orders.version = @P3 AND dbo.orders.id > @P4) AND dbo.orders.version < @P5 ORDER BY dbo.orders.version, dbo.orders.id
 OFFSET 0 ROWS
 FETCH FIRST 3 ROWS ONLY
GO
SELECT * 
FROM dbo.orders 
WHERE dbo.orders.version >= @P1 AND (dbo.orders.version > @P2 OR dbo.orders.version = @P3 AND dbo.orders.id > @P4) AND dbo.orders.version <= @P5 ORDER BY dbo.orders.version, dbo.orders.id
 OFFSET 0 ROWS
 FETCH FIRST 3 ROWS ONLY
GO
SELECT count(*) AS count_1 
FROM (SELECT * 
FROM dbo.orders 
WHERE dbo.orders.version >= @P1 AND (dbo.orders.version > @P2 OR dbo.orders.version = @P3 AND dbo.orders.id > @P4)) AS azfdb_counted
GO
SELECT count(*) AS count_1 
FROM (SELECT TOP 100000 * 
FROM dbo.orders 
WHERE dbo.orders.version >= @P1 AND (dbo.orders.version > @P2 OR dbo.orders.version = @P3 AND dbo.orders.id > @P4)) AS azfdb_counted
GO
SELECT * 
FROM dbo.orders 
WHERE dbo.orders.version >= @P1 AND (dbo.orders.version > @P2 OR dbo.orders.version = @P3 AND dbo.orders.id > @P4) ORDER BY dbo.orders.version, dbo.orders.id
 OFFSET 0 ROWS
 FETCH FIRST 2 ROWS ONLY
GO
SELECT * 
FROM dbo.orders 
WHERE dbo.orders.id IS NOT NULL AND (name IS NOT NULL
) ORDER BY dbo.orders.id
 OFFSET 0 ROWS
 FETCH FIRST 3 ROWS ONLY
GO
SELECT * 
FROM dbo.orders 
WHERE dbo.orders.id > @P1 AND (name IS NOT NULL
) ORDER BY dbo.orders.id
 OFFSET 0 ROWS
 FETCH FIRST 3 ROWS ONLY
GO
SELECT count(*) AS count_1 
FROM (SELECT * 
FROM dbo.orders 
WHERE dbo.orders.id > @P1 AND (name IS NOT NULL
)) AS azfdb_counted
GO
SELECT count(*) AS count_1 
FROM (SELECT TOP 100000 * 
FROM dbo.orders 
WHERE dbo.orders.id > @P1 AND (name IS NOT NULL
)) AS azfdb_counted
GO
SELECT * 
FROM dbo.orders 
WHERE dbo.orders.id > @P1 AND (name IS NOT NULL
) ORDER BY dbo.orders.id
 OFFSET 0 ROWS
 FETCH FIRST 2 ROWS ONLY
GO
SELECT sysdatetime() AS sysdatetime_1
GO
SELECT * 
FROM dbo.orders 
WHERE dbo.orders.at IS NOT NULL AND dbo.orders.at <= CAST(@P1 AS DATETIME2) ORDER BY dbo.orders.at, dbo.orders.id
 OFFSET 0 ROWS
 FETCH FIRST 3 ROWS ONLY
GO
SELECT count(*) AS count_1 
FROM dbo.orders 
WHERE dbo.orders.at IS NULL
GO
SELECT * 
FROM dbo.orders 
WHERE dbo.orders.at >= CAST(@P1 AS DATETIME2) AND dbo.orders.at < CAST(@P2 AS DATETIME2) ORDER BY dbo.orders.at, dbo.orders.id
 OFFSET 0 ROWS
 FETCH FIRST 5 ROWS ONLY
GO
SELECT * 
FROM dbo.orders 
WHERE dbo.orders.at >= CAST(@P1 AS DATETIME2) AND dbo.orders.at <= CAST(@P2 AS DATETIME2) ORDER BY dbo.orders.at, dbo.orders.id
 OFFSET 0 ROWS
 FETCH FIRST 4 ROWS ONLY
GO
SELECT count(*) AS count_1 
FROM (SELECT * 
FROM dbo.orders 
WHERE dbo.orders.at >= CAST(@P1 AS DATETIME2) AND (dbo.orders.at > CAST(@P2 AS DATETIME2) OR dbo.orders.at = CAST(@P3 AS DATETIME2) AND dbo.orders.id > @P4)) AS azfdb_counted
GO
SELECT count(*) AS count_1 
FROM (SELECT TOP 100000 * 
FROM dbo.orders 
WHERE dbo.orders.at >= CAST(@P1 AS DATETIME2) AND (dbo.orders.at > CAST(@P2 AS DATETIME2) OR dbo.orders.at = CAST(@P3 AS DATETIME2) AND dbo.orders.id > @P4)) AS azfdb_counted
GO
SELECT * 
FROM dbo.orders 
WHERE dbo.orders.at >= CAST(@P1 AS DATETIME2) ORDER BY dbo.orders.at, dbo.orders.id
 OFFSET 0 ROWS
 FETCH FIRST 4 ROWS ONLY
GO
-- === change tracking
SELECT OBJECT_ID(@P1) AS object_id,
 (SELECT modify_date FROM sys.objects WHERE object_id = OBJECT_ID(@P2)) AS modified_at,
 (SELECT is_track_columns_updated_on FROM sys.change_tracking_tables
  WHERE object_id = OBJECT_ID(@P3)) AS with_columns,
 (SELECT snapshot_isolation_state FROM sys.databases WHERE database_id = DB_ID()) AS snapshots
GO
SELECT retention_period, retention_period_units, is_auto_cleanup_on
FROM sys.change_tracking_databases WHERE database_id = DB_ID()
GO
ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = 3 DAYS, AUTO_CLEANUP = ON)
GO
ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON
GO
ALTER TABLE [dbo].[orders] ENABLE CHANGE_TRACKING WITH (TRACK_COLUMNS_UPDATED = ON)
GO
SELECT CHANGE_TRACKING_MIN_VALID_VERSION(OBJECT_ID(@P1))
GO
SELECT CHANGE_TRACKING_CURRENT_VERSION()
GO
SELECT * 
FROM dbo.orders 
WHERE dbo.orders.id IS NOT NULL ORDER BY dbo.orders.id
 OFFSET 0 ROWS
 FETCH FIRST 2 ROWS ONLY
GO
SELECT * 
FROM dbo.orders 
WHERE dbo.orders.id > @P1 ORDER BY dbo.orders.id
 OFFSET 0 ROWS
 FETCH FIRST 2 ROWS ONLY
GO
SELECT TOP (@P1) CT.SYS_CHANGE_VERSION, CT.SYS_CHANGE_CREATION_VERSION, CT.SYS_CHANGE_OPERATION, CT.[id], T.[id], T.[name], T.[total], T.[at], T.[version], CASE WHEN CT.SYS_CHANGE_COLUMNS IS NULL THEN 1 ELSE CHANGE_TRACKING_IS_COLUMN_IN_MASK(COLUMNPROPERTY(OBJECT_ID(N'[dbo].[orders]'), N'name', 'ColumnId'), CT.SYS_CHANGE_COLUMNS) END, CASE WHEN CT.SYS_CHANGE_COLUMNS IS NULL THEN 1 ELSE CHANGE_TRACKING_IS_COLUMN_IN_MASK(COLUMNPROPERTY(OBJECT_ID(N'[dbo].[orders]'), N'total', 'ColumnId'), CT.SYS_CHANGE_COLUMNS) END, CASE WHEN CT.SYS_CHANGE_COLUMNS IS NULL THEN 1 ELSE CHANGE_TRACKING_IS_COLUMN_IN_MASK(COLUMNPROPERTY(OBJECT_ID(N'[dbo].[orders]'), N'at', 'ColumnId'), CT.SYS_CHANGE_COLUMNS) END, CASE WHEN CT.SYS_CHANGE_COLUMNS IS NULL THEN 1 ELSE CHANGE_TRACKING_IS_COLUMN_IN_MASK(COLUMNPROPERTY(OBJECT_ID(N'[dbo].[orders]'), N'version', 'ColumnId'), CT.SYS_CHANGE_COLUMNS) END
FROM CHANGETABLE(CHANGES [dbo].[orders], @P2) AS CT LEFT JOIN [dbo].[orders] AS T ON T.[id] = CT.[id]
WHERE CT.SYS_CHANGE_VERSION <= @P3 AND CT.SYS_CHANGE_VERSION > @P4
ORDER BY CT.SYS_CHANGE_VERSION, CT.[id]
GO
SELECT COUNT(*) FROM (SELECT TOP (@P1) CT.SYS_CHANGE_VERSION AS version
FROM CHANGETABLE(CHANGES [dbo].[orders], @P2) AS CT
WHERE CT.SYS_CHANGE_VERSION <= @P3 AND CT.SYS_CHANGE_VERSION > @P4) AS counted
GO
SELECT TOP (@P1) CT.SYS_CHANGE_VERSION, CT.SYS_CHANGE_CREATION_VERSION, CT.SYS_CHANGE_OPERATION, CT.[id], T.[id], T.[name], T.[total], T.[at], T.[version], CASE WHEN CT.SYS_CHANGE_COLUMNS IS NULL THEN 1 ELSE CHANGE_TRACKING_IS_COLUMN_IN_MASK(COLUMNPROPERTY(OBJECT_ID(N'[dbo].[orders]'), N'name', 'ColumnId'), CT.SYS_CHANGE_COLUMNS) END, CASE WHEN CT.SYS_CHANGE_COLUMNS IS NULL THEN 1 ELSE CHANGE_TRACKING_IS_COLUMN_IN_MASK(COLUMNPROPERTY(OBJECT_ID(N'[dbo].[orders]'), N'total', 'ColumnId'), CT.SYS_CHANGE_COLUMNS) END, CASE WHEN CT.SYS_CHANGE_COLUMNS IS NULL THEN 1 ELSE CHANGE_TRACKING_IS_COLUMN_IN_MASK(COLUMNPROPERTY(OBJECT_ID(N'[dbo].[orders]'), N'at', 'ColumnId'), CT.SYS_CHANGE_COLUMNS) END, CASE WHEN CT.SYS_CHANGE_COLUMNS IS NULL THEN 1 ELSE CHANGE_TRACKING_IS_COLUMN_IN_MASK(COLUMNPROPERTY(OBJECT_ID(N'[dbo].[orders]'), N'version', 'ColumnId'), CT.SYS_CHANGE_COLUMNS) END
FROM CHANGETABLE(CHANGES [dbo].[orders], @P2) AS CT LEFT JOIN [dbo].[orders] AS T ON T.[id] = CT.[id]
WHERE CT.SYS_CHANGE_VERSION <= @P3 AND (CT.SYS_CHANGE_VERSION > @P4 OR (CT.SYS_CHANGE_VERSION = @P5 AND ((CT.[id] > @P6))))
ORDER BY CT.SYS_CHANGE_VERSION, CT.[id]
GO
ALTER TABLE [dbo].[orders] DISABLE CHANGE_TRACKING
GO
-- === outbox
CREATE TABLE dbo.outbox (
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
)
GO
CREATE INDEX ix_outbox_position ON dbo.outbox (position, sequence)
GO
INSERT INTO dbo.outbox (id, aggregatetype, aggregateid, type, payload, headers) OUTPUT inserted.sequence VALUES (@P1, @P2, @P3, @P4, @P5, @P6)
GO
SELECT CAST(CAST(MIN_ACTIVE_ROWVERSION() AS BIGINT) - 1 AS BINARY(8))
GO
SELECT * 
FROM dbo.outbox 
WHERE dbo.outbox.position IS NOT NULL AND dbo.outbox.position <= @P1 ORDER BY dbo.outbox.position
 OFFSET 0 ROWS
 FETCH FIRST 101 ROWS ONLY
GO
SELECT dbo.outbox.id, dbo.outbox.aggregateid, dbo.outbox.created_at, dbo.outbox.sequence, dbo.outbox.position 
FROM dbo.outbox 
WHERE dbo.outbox.position IS NOT NULL ORDER BY dbo.outbox.position
 OFFSET 0 ROWS
 FETCH FIRST 101 ROWS ONLY
GO
DELETE FROM dbo.outbox WHERE dbo.outbox.id IN (@P1, @P2)
GO
SELECT count(*) AS count_1 
FROM (SELECT TOP 100000 * 
FROM dbo.outbox 
WHERE dbo.outbox.position > @P1) AS azfdb_counted
GO
SELECT dbo.outbox.id, dbo.outbox.aggregateid, dbo.outbox.created_at, dbo.outbox.sequence, dbo.outbox.position 
FROM dbo.outbox 
WHERE dbo.outbox.position > @P1 ORDER BY dbo.outbox.position
 OFFSET 0 ROWS
 FETCH FIRST 2 ROWS ONLY
GO
SELECT * 
FROM dbo.outbox 
WHERE dbo.outbox.position > @P1 ORDER BY dbo.outbox.position
 OFFSET 0 ROWS
 FETCH FIRST 2 ROWS ONLY
GO
SELECT count(*) AS count_1 
FROM (SELECT dbo.outbox.id AS id, dbo.outbox.aggregateid AS aggregateid, dbo.outbox.created_at AS created_at, dbo.outbox.sequence AS sequence, dbo.outbox.position AS position 
FROM dbo.outbox 
WHERE dbo.outbox.position IS NOT NULL) AS azfdb_counted
GO
SELECT count(*) AS count_1 
FROM dbo.outbox 
WHERE dbo.outbox.position IS NULL
GO
SELECT sysutcdatetime()
GO
-- === state
SELECT azfdb_state.document, azfdb_state.version 
FROM azfdb_state 
WHERE azfdb_state.app_name = @P1 AND azfdb_state.poller_name = @P2
GO
INSERT INTO azfdb_state (app_name, poller_name, document, version) VALUES (@P1, @P2, @P3, @P4)
GO
CREATE TABLE azfdb_state (
	app_name NVARCHAR(200) COLLATE Latin1_General_100_BIN2 NOT NULL, 
	poller_name NVARCHAR(200) COLLATE Latin1_General_100_BIN2 NOT NULL, 
	document NVARCHAR(max) NOT NULL, 
	version BIGINT NOT NULL, 
	PRIMARY KEY (app_name, poller_name)
)
GO
UPDATE azfdb_state SET document=@P1, version=@P2 WHERE azfdb_state.app_name = @P3 AND azfdb_state.poller_name = @P4 AND azfdb_state.version = @P5
GO
SELECT azfdb_state.poller_name 
FROM azfdb_state 
WHERE azfdb_state.app_name = @P1
GO
-- === quarantine
CREATE TABLE azfdb_quarantine (
	poller_name NVARCHAR(200) COLLATE Latin1_General_100_BIN2 NOT NULL, 
	event_id NVARCHAR(200) COLLATE Latin1_General_100_BIN2 NOT NULL, 
	quarantined_at VARCHAR(40) NOT NULL, 
	error_type VARCHAR(200) NOT NULL, 
	entry NVARCHAR(max) NOT NULL, 
	PRIMARY KEY (poller_name, event_id)
)
GO
DELETE FROM azfdb_quarantine WHERE azfdb_quarantine.poller_name = @P1 AND azfdb_quarantine.event_id = @P2
GO
INSERT INTO azfdb_quarantine (poller_name, event_id, quarantined_at, error_type, entry) VALUES (@P1, @P2, @P3, @P4, @P5)
GO
SELECT azfdb_quarantine.poller_name, azfdb_quarantine.event_id, azfdb_quarantine.quarantined_at, azfdb_quarantine.error_type, azfdb_quarantine.entry 
FROM azfdb_quarantine 
WHERE azfdb_quarantine.poller_name = @P1
GO
SELECT count(*) AS count_1 
FROM azfdb_quarantine 
WHERE azfdb_quarantine.poller_name = @P1
GO
DELETE FROM azfdb_quarantine WHERE azfdb_quarantine.poller_name = @P1 AND azfdb_quarantine.event_id = @P2 AND azfdb_quarantine.entry LIKE @P3 ESCAPE '/'
GO
SELECT azfdb_quarantine.poller_name, azfdb_quarantine.event_id, azfdb_quarantine.quarantined_at, azfdb_quarantine.error_type, azfdb_quarantine.entry 
FROM azfdb_quarantine
GO
-- === ledgers
CREATE TABLE azfdb_processed (
	scope NVARCHAR(100) COLLATE Latin1_General_100_BIN2 NOT NULL, 
	event_id NVARCHAR(200) COLLATE Latin1_General_100_BIN2 NOT NULL, 
	mark VARCHAR(32) NOT NULL, 
	noted_at VARCHAR(32) NOT NULL, 
	PRIMARY KEY (scope, event_id)
)
GO
CREATE INDEX ix_azfdb_processed_noted_at ON azfdb_processed (noted_at)
GO
INSERT INTO azfdb_processed (scope, event_id, mark, noted_at) SELECT @P1 AS anon_1, @P2 AS anon_2, @P3 AS anon_3, @P4 AS anon_4 
WHERE NOT (EXISTS (SELECT azfdb_processed.scope, azfdb_processed.event_id, azfdb_processed.mark, azfdb_processed.noted_at 
FROM azfdb_processed WITH (UPDLOCK, HOLDLOCK) 
WHERE azfdb_processed.scope = @P5 AND azfdb_processed.event_id = @P6))
GO
SELECT azfdb_processed.event_id 
FROM azfdb_processed 
WHERE azfdb_processed.event_id IN (@P1, @P2) AND azfdb_processed.scope = @P3 AND azfdb_processed.mark = @P4
GO
DELETE FROM azfdb_processed WHERE azfdb_processed.noted_at < @P1
GO
CREATE TABLE azfdb_delivered (
	poller_name NVARCHAR(200) COLLATE Latin1_General_100_BIN2 NOT NULL, 
	position_hash VARCHAR(64) NOT NULL, 
	event_id NVARCHAR(200) COLLATE Latin1_General_100_BIN2 NOT NULL, 
	cursor_value VARCHAR(max) NOT NULL, 
	row_key VARCHAR(max) NOT NULL, 
	noted_at VARCHAR(32) NOT NULL, 
	PRIMARY KEY (poller_name, position_hash)
)
GO
CREATE INDEX ix_azfdb_delivered_noted_at ON azfdb_delivered (noted_at)
GO
INSERT INTO azfdb_delivered (poller_name, position_hash, event_id, cursor_value, row_key, noted_at) SELECT @P1 AS anon_1, @P2 AS anon_2, @P3 AS anon_3, @P4 AS anon_4, @P5 AS anon_5, @P6 AS anon_6 
WHERE NOT (EXISTS (SELECT azfdb_delivered.poller_name, azfdb_delivered.position_hash, azfdb_delivered.event_id, azfdb_delivered.cursor_value, azfdb_delivered.row_key, azfdb_delivered.noted_at 
FROM azfdb_delivered WITH (UPDLOCK, HOLDLOCK) 
WHERE azfdb_delivered.poller_name = @P7 AND azfdb_delivered.position_hash = @P8))
GO
SELECT azfdb_delivered.position_hash 
FROM azfdb_delivered 
WHERE azfdb_delivered.position_hash IN (@P1, @P2) AND azfdb_delivered.poller_name = @P3
GO
DELETE FROM azfdb_delivered WHERE azfdb_delivered.noted_at < @P1
GO
