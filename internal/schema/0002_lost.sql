-- What processes held that have ended without settling it, see tables/lost.sql.

CREATE TABLE rate_limit_lost (
	processes text,
	process   bigint,
	units     jsonb NOT NULL,
	found_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
	reported_at   timestamptz,
	PRIMARY KEY (processes, process)
);
CREATE INDEX rate_limit_lost_reported_at ON rate_limit_lost (reported_at);
