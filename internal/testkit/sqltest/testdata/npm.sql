CREATE UNLOGGED TABLE rate_limit_ephemeral (prefix TEXT NOT NULL, key TEXT NOT NULL, count BIGINT,
	prev_count BIGINT, window_start TIMESTAMPTZ, tokens DOUBLE PRECISION, last_refill TIMESTAMPTZ,
	expires_at TIMESTAMPTZ NOT NULL, PRIMARY KEY (prefix, key));
CREATE TABLE rate_limit_durable (LIKE rate_limit_ephemeral INCLUDING ALL);
