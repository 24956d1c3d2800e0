package ratelimit

// TableSQL creates the two tables, or brings those of the npm library
// pg-ratelimit up to date in place, keeping their rows. It may run any number
// of times. A Postgres store runs exactly this on first use, unless it is told
// not to; then it is for your own migrations.
//
// Both tables have the columns of that library, two for the algorithms that it
// lacks (hits for sliding_log, remainder for gcra), and two that carry what one
// statement tells itself: slot, the row's place among the statement's parameters,
// and granted, how many hits it admitted. They say nothing between statements.
//
// fillfactor leaves room on each page for the row's next version, so that an
// update touches no index.
const TableSQL = `
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
ALTER TABLE rate_limit_ephemeral ADD COLUMN IF NOT EXISTS hits TIMESTAMPTZ[], ADD COLUMN IF NOT EXISTS remainder BIGINT,
	ADD COLUMN IF NOT EXISTS slot INT, ADD COLUMN IF NOT EXISTS granted BIGINT, SET (fillfactor = 70);
ALTER TABLE rate_limit_durable ADD COLUMN IF NOT EXISTS hits TIMESTAMPTZ[], ADD COLUMN IF NOT EXISTS remainder BIGINT,
	ADD COLUMN IF NOT EXISTS slot INT, ADD COLUMN IF NOT EXISTS granted BIGINT, SET (fillfactor = 70);
CREATE INDEX IF NOT EXISTS idx_rate_limit_ephemeral_cleanup ON rate_limit_ephemeral (prefix, expires_at);
CREATE INDEX IF NOT EXISTS idx_rate_limit_durable_cleanup ON rate_limit_durable (prefix, expires_at);
`

// schemaSQL reports whether TableSQL has nothing left to do. It reads the
// catalogue only and takes no lock on the tables.
const schemaSQL = `SELECT bool_and(coalesce(
	(SELECT count(*) = 12 FROM pg_catalog.pg_attribute a WHERE a.attrelid = to_regclass(t.name) AND NOT a.attisdropped
		AND a.attname IN ('prefix', 'key', 'count', 'prev_count', 'window_start', 'tokens', 'last_refill', 'expires_at',
			'hits', 'remainder', 'slot', 'granted'))
	AND to_regclass('idx_' || t.name || '_cleanup') IS NOT NULL, false))::int
FROM (VALUES ('rate_limit_ephemeral'), ('rate_limit_durable')) AS t(name)`

// migrationSQL runs TableSQL under an advisory lock, in one process at a time.
// The lock's number is arbitrary.
const migrationSQL = `SELECT pg_advisory_xact_lock(1885827692);` + TableSQL

// SQLSTATEs that a store acts on: the tables are missing or lack a column; the
// statement lost against another transaction and did nothing.
const (
	undefinedTable       = "42P01"
	undefinedColumn      = "42703"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
)

// schemaStatement asks whether the tables are right.
func schemaStatement(right *bool) *Statement {
	return &Statement{SQL: schemaSQL, Row: func(columns [][]byte) error {
		*right = bigint(columns[0]) == 1
		return nil
	}}
}
