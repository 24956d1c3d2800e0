-- The tables of the history. rate_limit_audit has one partition for each day in UTC; see
-- history_partitions.sql. No table refers to a table of the policy, so the history of a deleted rule or user
-- stays.

CREATE TABLE IF NOT EXISTS rate_limit_audit (
	time           timestamptz NOT NULL,
	cost           bigint NOT NULL,
	count          bigint NOT NULL DEFAULT 1,
	quota          bigint,
	remaining      bigint,
	key_id         bigint,
	retry_after_ms bigint,
	duration_us    bigint NOT NULL,
	weight         float8 NOT NULL DEFAULT 1,
	status         integer,
	shadow         boolean NOT NULL DEFAULT false,
	outcome        text NOT NULL,
	reason         text,
	prefix         text NOT NULL,
	limit_name     text,
	key            text,
	user_id        text,
	tier           text,
	address        inet,
	host           text,
	method         text,
	path           text,
	node           text NOT NULL,
	region         text,
	also           text[],
	id             bigint,
	CONSTRAINT outcome_must_be_as_in_docs_metrics_md
		CHECK (outcome IN ('admitted', 'limited', 'blocked', 'rejected', 'overloaded', 'failed'))
) PARTITION BY RANGE (time);
CREATE SEQUENCE IF NOT EXISTS rate_limit_audit_id OWNED BY rate_limit_audit.id;
COMMENT ON SEQUENCE rate_limit_audit_id IS 'The ids of the rows of rate_limit_audit.';
CREATE INDEX IF NOT EXISTS rate_limit_audit_time ON rate_limit_audit USING brin (time)
	WITH (pages_per_range = 16, autosummarize = on);
CREATE INDEX IF NOT EXISTS rate_limit_audit_user ON rate_limit_audit (user_id, time)
	WHERE user_id IS NOT NULL;
-- Requests that passed have no entry in this index. With audit all, almost all rows are such requests, and
-- their entries would double the cost of a row.
CREATE INDEX IF NOT EXISTS rate_limit_audit_outcome ON rate_limit_audit (outcome, time)
	WHERE outcome <> 'admitted';
-- The index has a Bloom filter for each 300 to 600 rows. Writes cost almost nothing, and a search reads about
-- one in 1,000 block ranges needlessly. The column time makes the planner choose this index.
CREATE INDEX IF NOT EXISTS rate_limit_audit_who ON rate_limit_audit USING brin (time,
	key text_bloom_ops (n_distinct_per_range = 500, false_positive_rate = 0.001),
	address inet_bloom_ops (n_distinct_per_range = 500, false_positive_rate = 0.001),
	key_id int8_bloom_ops (n_distinct_per_range = 500, false_positive_rate = 0.001))
	WITH (pages_per_range = 8, autosummarize = on);
CALL rate_limit_describe('rate_limit_audit', $$
The audit log: a row for each recorded request, or for several equal refusals. A refusal that a shadow rule
	would have made has a row of its own.
time: The time of the decision, by the clock of the proxy.
cost: The cost of one request. For a refused request, the cost that it would have had.
count: The number of equal refusals within the same second that this row represents. The other columns
	describe the first of them.
quota: The full quota. NULL: no limit decided.
remaining: The units of the quota left after the decision.
key_id: The id of the API key in rate_limit_api_keys. NULL: none.
retry_after_ms: For a refusal, the time until the request would pass, in milliseconds. NULL: the request
	passed, it would never pass, or the time is unknown.
duration_us: The time that the decision took, in microseconds.
weight: The number of requests that each request of this row represents: above 1 if only a sample is
	recorded. count * weight is the estimated number of requests.
status: The HTTP status of a refusal. NULL: the request passed.
shadow: Whether a shadow rule would have had this outcome. The request has another row with its own outcome.
outcome: admitted; limited: refused by a limit; blocked: by a ban or a block rule; rejected: because the API
	key, the path or the body is not valid; overloaded: not decided in time while others were; failed: not
	decided.
reason: The reason for the outcome, if no limit decided: unknown_key, key_expired, key_revoked, no_key,
	ambiguous_path, upgrade, ambiguous_body, background, slow_body, long_body, many_bodies, no_price, banned,
	blocked, no_quota, timeout or unavailable.
prefix: The prefix of the limit in a configuration, or rule/ and the name of the rule; empty if no limit
	applied. If several limits applied, it is the limit that refused, otherwise the limit with the least
	remaining.
limit_name: The name of the limit of the rule. NULL: a limit in a configuration.
key: The stored key of the counter, which is a digest if the key is a secret.
user_id: The user. NULL: an anonymous request.
tier: The tier of the user, with a policy.
address: The address of the client, or its network; see audit_address.
host: The host of the request.
method: The method of the request.
path: The path of the request without the query, up to 500 characters.
node: The name of the proxy.
region: The region of the proxy, if its configuration has one.
also: The other limits that the request matched, charged or not, as pairs of prefix and key. NULL: none.
id: A unique number.
$$);

-- The sums from which metrics, usage and invoices are computed. A proxy adds each request to its minute, its
-- hour and its day in one statement, so days are always current. Minutes and hours have one partition for
-- each day in UTC; see history_partitions.sql. Days have one table.
--
-- The unique index starts with the user, because queries look up a user in all days. The BRIN index finds a
-- period and costs a write almost nothing. The table has a unique index and no primary key, because
-- pg_restore --clean cannot drop primary keys of partitions.
CREATE TABLE IF NOT EXISTS rate_limit_metrics (
	granularity   text NOT NULL,
	time          timestamptz NOT NULL,
	user_id       text NOT NULL DEFAULT '',
	key_id        bigint NOT NULL DEFAULT 0,
	prefix        text NOT NULL DEFAULT '',
	limit_name    text NOT NULL DEFAULT '',
	endpoint      text NOT NULL DEFAULT '',
	region        text NOT NULL DEFAULT '',
	requests      bigint NOT NULL DEFAULT 0,
	admitted      bigint NOT NULL DEFAULT 0,
	limited       bigint NOT NULL DEFAULT 0,
	blocked       bigint NOT NULL DEFAULT 0,
	rejected      bigint NOT NULL DEFAULT 0,
	overloaded    bigint NOT NULL DEFAULT 0,
	failed        bigint NOT NULL DEFAULT 0,
	shadow        bigint NOT NULL DEFAULT 0,
	charged       bigint NOT NULL DEFAULT 0,
	settled       bigint NOT NULL DEFAULT 0,
	from_memory   bigint NOT NULL DEFAULT 0,
	from_lease    bigint NOT NULL DEFAULT 0,
	from_database bigint NOT NULL DEFAULT 0,
	last_request  timestamptz NOT NULL,
	latency       bigint[] NOT NULL DEFAULT '{}',
	CONSTRAINT granularity_must_be_minute_hour_or_day CHECK (granularity IN ('minute', 'hour', 'day'))
) PARTITION BY LIST (granularity);
CREATE UNIQUE INDEX IF NOT EXISTS rate_limit_metrics_key ON rate_limit_metrics (user_id, time, key_id,
	prefix, limit_name, endpoint, region, granularity);
CREATE INDEX IF NOT EXISTS rate_limit_metrics_time ON rate_limit_metrics USING brin (time)
	WITH (pages_per_range = 16, autosummarize = on);
CALL rate_limit_describe('rate_limit_metrics', $$
Sums of requests by user, API key, deciding limit and endpoint, in a minute, an hour or a day, over all
	proxies of a region. Usage and invoices are computed from them.
granularity: minute, hour or day: each request counts in all three.
time: The start of the minute, hour or day, in UTC.
user_id: The user; empty: anonymous requests; (other): users beyond the first 10,000 combinations of a
	proxy in a minute.
key_id: The id of the API key; 0: none, or (other).
prefix: As in rate_limit_audit.
limit_name: The name of the limit of the rule; empty: a limit in a configuration, or none.
endpoint: The name of the route in the configuration, otherwise the paths of the matching rule or zone, but
	never the path of a request; (other): as for users.
region: The region of the proxies, if their configuration has one.
requests: All requests: the next six columns together. A request counts once, for the limit that refused
	it or has the least remaining.
admitted: Requests that passed.
limited: Requests that a limit refused.
blocked: Requests that a ban or a block rule refused.
rejected: Requests that were refused because of their API key, their path or their body.
overloaded: Requests that were not decided in time while others were.
failed: Other requests without a decision, whether they passed or not.
shadow: Refusals that shadow rules would have made. Their requests count in the other columns, too.
charged: Units that this limit charged for requests that passed, including requests counted under another
	limit.
settled: The actual cost of these requests, once their responses end; equal to charged if the limit has no
	settle.
from_memory: Limited requests that a proxy refused from memory, without the database.
from_lease: Admitted requests that a lease decided, without the database.
from_database: Requests that the database decided, because neither the memory of the proxy nor a lease
	could.
last_request: The time of the last request.
latency: The numbers of decisions by duration, in buckets; see rate_limit_percentile.
$$);
-- LIKE copies the comments of the columns to the partitions.
DO $$
DECLARE
	part text;
BEGIN
	FOREACH part IN ARRAY ARRAY['minute', 'hour', 'day'] LOOP
		CONTINUE WHEN to_regclass('rate_limit_metrics_' || part) IS NOT NULL;
		EXECUTE format('CREATE TABLE rate_limit_metrics_%1$s (LIKE rate_limit_metrics INCLUDING ALL) %2$s;
			ALTER TABLE rate_limit_metrics ATTACH PARTITION rate_limit_metrics_%1$s FOR VALUES IN (%1$L);
			COMMENT ON TABLE rate_limit_metrics_%1$s IS ''The %1$ss of rate_limit_metrics, in UTC.''',
			part, CASE WHEN part <> 'day' THEN 'PARTITION BY RANGE (time)' END);
	END LOOP;
	-- Logical replication identifies rows by this index, as by a primary key.
	EXECUTE (SELECT format('ALTER TABLE rate_limit_metrics_day REPLICA IDENTITY USING INDEX %I', c.relname)
		FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
		WHERE i.indrelid = 'rate_limit_metrics_day'::regclass AND i.indisunique);
END $$;

CREATE TABLE IF NOT EXISTS rate_limit_writers (
	writer  text PRIMARY KEY,
	node    text NOT NULL,
	region  text,
	batch   bigint NOT NULL,
	written bigint NOT NULL DEFAULT 0,
	dropped bigint NOT NULL DEFAULT 0,
	seen    timestamptz NOT NULL DEFAULT now()
);
CALL rate_limit_describe('rate_limit_writers', $$
The processes that write the history, and the progress of each. A row that was not renewed for 30 days is
	deleted.
writer: A random name of the process.
node: The name of the proxy.
region: The region of the proxy, if its configuration has one.
batch: The number of the last written batch, so that a batch that is sent again after a failure is not written
	twice.
written: The number of decisions that the process has written to rate_limit_audit.
dropped: The number of decisions that the process could not write, because the database was slow or down
	for too long.
seen: The time of the last batch.
$$);

CREATE TABLE IF NOT EXISTS rate_limit_retention (
	what   text PRIMARY KEY,
	keep   interval NOT NULL,
	set_by text,
	set_at timestamptz NOT NULL DEFAULT now(),
	upkeep_at timestamptz,
	CONSTRAINT what_must_be_audit_or_metrics_of_minute_hour_or_day
		CHECK (what IN ('audit', 'metrics_minute', 'metrics_hour', 'metrics_day')),
	CONSTRAINT keep_must_be_1_day_or_more CHECK (keep >= interval '1 day')
);
INSERT INTO rate_limit_retention (what, keep) VALUES ('audit', '90 days'), ('metrics_minute', '7 days'),
	('metrics_hour', '90 days'), ('metrics_day', '7 years')
	ON CONFLICT DO NOTHING;
CALL rate_limit_describe('rate_limit_retention', $$
The retention of each part of the history. Upkeep deletes older rows. A proxy with a retention in its
	configuration writes it when it starts.
what: The part of the history: audit, metrics_minute, metrics_hour or metrics_day.
keep: The retention. A part without a row is kept for ever.
set_by: The proxy or the role that set the retention. NULL: it is the default.
set_at: When the retention was set.
upkeep_at: When upkeep last ran.
$$);
