BEGIN TRANSACTION;
CREATE TABLE azfdb_processed (
	scope VARCHAR(100) NOT NULL, 
	event_id VARCHAR(200) NOT NULL, 
	mark VARCHAR(32) NOT NULL, 
	noted_at VARCHAR(32) NOT NULL, 
	PRIMARY KEY (scope, event_id)
);
INSERT INTO "azfdb_processed" VALUES('shop','4e6d864d0a43d55f9e58584bc61cf545ea9376d95fc464b55ae2d9c5b83cf85f','d196b9dddbc84a8c98b54c5d1e885526','2026-11-16T05:41:36.649834Z');
INSERT INTO "azfdb_processed" VALUES('shop','6801ff2145b07fcb241bb4f51dcb0bba49affde7edbf02a40c0cf0e7a79d2371','d196b9dddbc84a8c98b54c5d1e885526','2026-11-16T05:41:36.649834Z');
INSERT INTO "azfdb_processed" VALUES('shop','ad1f0c2dd53ae25bee291231c337845e5abbe3b55990f82a60b77a6543521a35','d196b9dddbc84a8c98b54c5d1e885526','2026-11-16T05:41:36.649834Z');
INSERT INTO "azfdb_processed" VALUES('shop','d128310a0ce5359d205e84581866a8da3d100e8e76c5e97a7a120c294611d038','d196b9dddbc84a8c98b54c5d1e885526','2026-11-16T05:41:36.649834Z');
CREATE TABLE azfdb_quarantine (
	poller_name VARCHAR(200) NOT NULL, 
	event_id VARCHAR(200) NOT NULL, 
	quarantined_at VARCHAR(40) NOT NULL, 
	error_type VARCHAR(200) NOT NULL, 
	entry TEXT NOT NULL, 
	PRIMARY KEY (poller_name, event_id)
);
INSERT INTO "azfdb_quarantine" VALUES('in-sql','4a231beaac31efb94825ad48fd70b560024c120ed4f04f2cf1fba44af87ee5bf','2026-11-16T05:41:36.894105+00:00','RowsFailed','{
  "poller_name": "in-sql",
  "event_id": "4a231beaac31efb94825ad48fd70b560024c120ed4f04f2cf1fba44af87ee5bf",
  "event": {
    "event_id": "4a231beaac31efb94825ad48fd70b560024c120ed4f04f2cf1fba44af87ee5bf",
    "op": "upsert",
    "source": {
      "name": "orders",
      "kind": "sqlalchemy",
      "fingerprint": "sha256:2383bd6e2463eda1629bd6c955fd083a8b3473cccb5401c5a90f794dfbda0659"
    },
    "cursor": 50,
    "pk": {
      "id": 5
    },
    "before": null,
    "after": {
      "id": 5,
      "version": 50,
      "note": "n5"
    },
    "metadata": {
      "batch_id": "batch_c269f4cd78354da4aef60a0bac3ffc55",
      "attempt": 1,
      "fetched_at": "2026-11-16T05:41:36.823023Z"
    }
  },
  "error_type": "RowsFailed",
  "error": "no good",
  "attempts": 1,
  "batch_id": "batch_c269f4cd78354da4aef60a0bac3ffc55",
  "quarantined_at": "2026-11-16T05:41:36.894105Z"
}');
CREATE TABLE azfdb_state (
	app_name VARCHAR(200) NOT NULL, 
	poller_name VARCHAR(200) NOT NULL, 
	document TEXT NOT NULL, 
	version BIGINT NOT NULL, 
	PRIMARY KEY (app_name, poller_name)
);
INSERT INTO "azfdb_state" VALUES('shop','in-sql','{
  "version": 1,
  "poller_name": "in-sql",
  "source_fingerprint": "sha256:2383bd6e2463eda1629bd6c955fd083a8b3473cccb5401c5a90f794dfbda0659",
  "checkpoint": {
    "cursor": {
      "kind": "integer+pk",
      "value": 70,
      "tiebreaker": {
        "id": 7
      }
    },
    "last_successful_batch_id": "batch_c269f4cd78354da4aef60a0bac3ffc55",
    "updated_at": "2026-11-16T05:41:36.940210Z",
    "metadata": {
      "row_count": 7,
      "rows_per_second": 0.023333
    }
  },
  "lease": {
    "owner_id": "vm/27716-8b8f38964a3c",
    "fencing_token": 1,
    "acquired_at": "2026-11-16T05:41:36.823108Z",
    "heartbeat_at": "2026-11-16T05:41:36.940281Z",
    "expires_at": "2026-11-16T05:41:36.940281Z"
  }
}',2);
CREATE TABLE orders (id integer PRIMARY KEY, version integer NOT NULL UNIQUE, note text);
INSERT INTO "orders" VALUES(1,10,'n1');
INSERT INTO "orders" VALUES(2,20,'n2');
INSERT INTO "orders" VALUES(3,30,'n3');
INSERT INTO "orders" VALUES(4,40,'n4');
INSERT INTO "orders" VALUES(5,50,'n5');
INSERT INTO "orders" VALUES(6,60,'n6');
INSERT INTO "orders" VALUES(7,70,'n7');
CREATE INDEX ix_azfdb_processed_noted_at ON azfdb_processed (noted_at);
COMMIT;