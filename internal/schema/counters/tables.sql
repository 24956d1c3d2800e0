-- The two tables of counts. Tables of the npm library pg-ratelimit are upgraded in place and keep their rows.
--
-- Keys have the collation "C" in every database, because comparing bytes costs less than following the rules
-- of a language. Tables that the npm library created keep the collation of their database.
--
-- The columns of the npm library come first. Three columns are for algorithms that the library lacks: hits
-- for sliding_log, remainder for gcra, and slots for in_flight. An element of slots is the number of a slot,
-- with the process in its high 32 bits. Only a running statement uses the columns slot and granted: slot is
-- the place of the row's entry in the parameters, and granted is the number of admitted hits.

CREATE UNLOGGED TABLE IF NOT EXISTS rate_limit_ephemeral (
	prefix       TEXT COLLATE "C" NOT NULL,
	key          TEXT COLLATE "C" NOT NULL,
	count        BIGINT,
	prev_count   BIGINT,
	window_start TIMESTAMPTZ,
	tokens       DOUBLE PRECISION,
	last_refill  TIMESTAMPTZ,
	expires_at   TIMESTAMPTZ NOT NULL,
	hits         TIMESTAMPTZ[],
	remainder    BIGINT,
	slot         INT,
	granted      BIGINT,
	slots        BIGINT[],
	PRIMARY KEY (prefix, key)
);
CREATE TABLE IF NOT EXISTS rate_limit_durable (LIKE rate_limit_ephemeral, PRIMARY KEY (prefix, key));

-- The columns that the tables of the npm library lack. fillfactor leaves room on each page for the next
-- version of a row, so that an update changes no index.
ALTER TABLE rate_limit_ephemeral ADD COLUMN IF NOT EXISTS hits TIMESTAMPTZ[],
	ADD COLUMN IF NOT EXISTS remainder BIGINT,
	ADD COLUMN IF NOT EXISTS slot INT, ADD COLUMN IF NOT EXISTS granted BIGINT,
		ADD COLUMN IF NOT EXISTS slots BIGINT[], SET (fillfactor = 70);
ALTER TABLE rate_limit_durable ADD COLUMN IF NOT EXISTS hits TIMESTAMPTZ[],
	ADD COLUMN IF NOT EXISTS remainder BIGINT,
	ADD COLUMN IF NOT EXISTS slot INT, ADD COLUMN IF NOT EXISTS granted BIGINT,
		ADD COLUMN IF NOT EXISTS slots BIGINT[], SET (fillfactor = 70);
CREATE INDEX IF NOT EXISTS idx_rate_limit_ephemeral_cleanup ON rate_limit_ephemeral (prefix, expires_at);
CREATE INDEX IF NOT EXISTS idx_rate_limit_durable_cleanup ON rate_limit_durable (prefix, expires_at);

-- The processes with requests that hold slots. Package engine calls such a process a session.
CREATE TABLE IF NOT EXISTS rate_limit_processes (
	process bigint PRIMARY KEY,
	seen    timestamptz NOT NULL
);
COMMENT ON TABLE rate_limit_ephemeral IS 'The counters that a crash of the server empties.';
COMMENT ON TABLE rate_limit_durable IS 'The counters that survive a crash of the server.';
COMMENT ON TABLE rate_limit_processes IS
	'The processes that hold slots of in_flight limits. Each renews its row every 3 seconds.';
COMMENT ON COLUMN rate_limit_processes.process IS
	'About the start of the process in seconds since 2000. After a long pause, a process takes another row.';
COMMENT ON COLUMN rate_limit_processes.seen IS
	'When the process renewed this row. 10 seconds later, its slots are free.';
