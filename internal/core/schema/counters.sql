-- The two tables of counts. Those of the npm library pg-ratelimit are brought up to date in place,
-- and keep their rows.
--
-- The columns are those of the npm library, then two for the algorithms that the library lacks
-- (hits for sliding_log, remainder for gcra), and two that a statement needs while it runs (slot,
-- the place of the row's entry in the statement's parameters, and granted, how many hits were
-- admitted). slot and granted mean nothing between statements.

CREATE UNLOGGED TABLE IF NOT EXISTS rate_limit_ephemeral (
	prefix       TEXT NOT NULL,
	key          TEXT NOT NULL,
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
	PRIMARY KEY (prefix, key)
);
CREATE TABLE IF NOT EXISTS rate_limit_durable (
	prefix       TEXT NOT NULL,
	key          TEXT NOT NULL,
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
	PRIMARY KEY (prefix, key)
);

-- The columns that a table of the npm library lacks. fillfactor leaves room on each page for the row's
-- next version, so that an update touches no index.
ALTER TABLE rate_limit_ephemeral ADD COLUMN IF NOT EXISTS hits TIMESTAMPTZ[], ADD COLUMN IF NOT EXISTS remainder BIGINT,
	ADD COLUMN IF NOT EXISTS slot INT, ADD COLUMN IF NOT EXISTS granted BIGINT, SET (fillfactor = 70);
ALTER TABLE rate_limit_durable ADD COLUMN IF NOT EXISTS hits TIMESTAMPTZ[], ADD COLUMN IF NOT EXISTS remainder BIGINT,
	ADD COLUMN IF NOT EXISTS slot INT, ADD COLUMN IF NOT EXISTS granted BIGINT, SET (fillfactor = 70);
CREATE INDEX IF NOT EXISTS idx_rate_limit_ephemeral_cleanup ON rate_limit_ephemeral (prefix, expires_at);
CREATE INDEX IF NOT EXISTS idx_rate_limit_durable_cleanup ON rate_limit_durable (prefix, expires_at);
