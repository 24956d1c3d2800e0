-- The comments of the history, and the queries on it that commands and the page use. No table refers to a
-- table of the policy, so the history of a deleted rule or user stays.

-- SEQUENCE rate_limit_audit_id: The ids of the rows of rate_limit_audit.

-- TABLE rate_limit_audit: The audit log: a row for each recorded request, or for several equal refusals. A
-- refusal that a shadow rule would have made has a row of its own.
--   time: The time of the decision, by the clock of the proxy.
--   cost: The cost of one request, in millionths for money. For a refused request, the cost that it would
--     have had.
--   count: The number of equal refusals within the same second that this row represents. The other columns
--     describe the first of them.
--   quota: The full quota. NULL: no limit decided.
--   remaining: The units of the quota left after the decision.
--   key_id: The id of the API key in rate_limit_api_keys. NULL: none.
--   retry_after_ms: For a refusal, the time until the request would pass, in milliseconds. NULL: the request
--     passed, it would never pass, or the time is unknown.
--   duration_us: The time that the decision took, in microseconds.
--   weight: The number of requests that each request of this row represents: above 1 if only a sample is
--     recorded. count * weight is the estimated number of requests.
--   status: The HTTP status of a refusal. NULL: the request passed.
--   shadow: Whether a shadow rule would have had this outcome. The request has another row with its own
--     outcome.
--   outcome: What the proxy did: see the columns of rate_limit_metrics.
--   reason: The reason for the outcome, if no limit decided: unknown_key, key_expired, key_revoked, no_key,
--     ambiguous_path, upgrade, ambiguous_body, background, batch, binary_stream, slow_body, long_body,
--     gone_body, many_bodies, no_price, banned, blocked, no_quota, timeout or unavailable.
--   model: The model that has no price, if the reason is no_price, up to 100 bytes of its name.
--   prefix: The prefix of the limit in a configuration, or rule/ and the name of the rule; empty if no limit
--     applied. If several limits applied, it is the limit that refused, otherwise the limit with the least
--     remaining.
--   limit_name: The name of the limit of the rule. NULL: a limit in a configuration.
--   key: The stored key of the counter, which is a digest if the key is a secret.
--   user_id: The user. NULL: an anonymous request.
--   tier: The tier of the user, with a policy.
--   address: The address of the client, or its network; see audit_address.
--   host: The host of the request.
--   method: The method of the request.
--   path: The path of the request without the query, up to 500 characters.
--   node: The name of the proxy.
--   region: The region of the proxy, if its configuration has one.
--   also: The other limits that the request matched, charged or not, as pairs of prefix and key. NULL: none.
--   id: A unique number.
--   unit: The unit of cost, quota and remaining: tokens, input_tokens, output_tokens or money. NULL:
--     requests, or the unit of a limit that settles.

-- TABLE rate_limit_metrics: Sums of requests by user, API key, deciding limit and endpoint, in a minute, an
-- hour or a day, over all proxies of a region. Usage and invoices are computed from them.
--   granularity: minute, hour or day: each request counts in all three.
--   time: The start of the minute, hour or day, in UTC.
--   user_id: The user; empty: anonymous requests; (other): users beyond the first 10,000 combinations of a
--     proxy in a minute.
--   key_id: The id of the API key; 0: none, or (other).
--   prefix: As in rate_limit_audit.
--   limit_name: The name of the limit of the rule; empty: a limit in a configuration, or none.
--   unit: The unit of settled: tokens, input_tokens, output_tokens or money, in millionths; empty: requests,
--     or the unit of a limit that settles.
--   endpoint: The name of the route in the configuration, otherwise the paths of the matching rule or zone,
--     but never the path of a request; (other): as for users.
--   region: The region of the proxies, if their configuration has one.
--   requests: All requests: the next six columns together. A request counts once, for the limit that refused
--     it or has the least remaining.
--   admitted: Requests that passed.
--   limited: Requests that a limit refused.
--   blocked: Requests that a ban or a block rule refused.
--   rejected: Requests that were refused because of their API key, their path or their body.
--   overloaded: Requests that were not decided in time while others were, or had a body when the proxy held
--     too many. They pass only if their limits refuse nothing.
--   failed: Other requests without a decision, which pass if on_error says so.
--   shadow: Refusals that shadow rules would have made. Their requests count in the other columns, too.
--   settled: Units that this limit charged for requests that passed, including requests counted under another
--     limit. If the limit has settle, the actual cost, once their responses end.
--   from_memory: Limited requests that a proxy refused from memory, without the database.
--   from_lease: Admitted requests that a lease decided, without the database.
--   from_database: Requests that the database decided, because neither the memory of the proxy nor a lease
--     could.
--   last_request: The time of the last request.
--   durations: The numbers of decisions by duration, in buckets; see rate_limit_percentile.

-- TABLE rate_limit_writers: The processes that write the history, and the progress of each. A row that was
-- not renewed for 30 days is deleted.
--   writer: A random name of the process.
--   node: The name of the proxy.
--   region: The region of the proxy, if its configuration has one.
--   batch: The number of the last written batch, so that a batch that is sent again after a failure is not
--     written twice.
--   written: The number of decisions that the process has written to rate_limit_audit.
--   dropped: The number of decisions that the process could not write, because the database was slow or down
--     for too long.
--   seen: The time of the last batch.

-- TABLE rate_limit_retention: The retention of each part of the history. Upkeep deletes older rows. A proxy
-- with a retention in its configuration writes it when it starts.
--   what: The part of the history: audit, metrics_minute, metrics_hour or metrics_day.
--   keep: The retention. A part without a row is kept for ever.
--   set_by: The proxy or the role that set the retention. NULL: it is the default.
--   set_at: When the retention was set.
--   upkeep_at: When upkeep last ran.

-- An amount for people: at least two of its decimals.
CREATE OR REPLACE FUNCTION rate_limit_readable(amount numeric) RETURNS text
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN regexp_replace(amount::text, '([.]\d\d\d*?)0+$', '\1');

-- The audit log with computed columns. Conditions on time, user_id and outcome are as fast as on
-- rate_limit_audit.
--   refused: Whether a decision refused the requests, and not in the shadow: false for overloaded and failed.
--   requests: The number of requests that the row represents, estimated if only a sample is recorded.
--   retry_after: For a refusal, the time until the request would pass, in seconds. NULL: the request passed,
--     it would never pass, or the time is unknown.
--   duration: The time that the decision took, in seconds.
--   cause: The reason in words, with the model that has no price.
--   xmin: The transaction that wrote the row: the last 32 bits of its number.
CREATE OR REPLACE VIEW rate_limit_audited WITH (security_invoker) AS
	SELECT a.time, a.outcome, a.shadow,
		a.outcome NOT IN ('admitted', 'overloaded', 'failed') AND NOT a.shadow AS refused, a.reason,
		a.prefix, a.limit_name, a.key, a.user_id, a.key_id, a.tier,
		a.address, a.host, a.method, a.path, a.node, a.region, a.status,
		rate_limit_decimal(a.cost, a.unit) AS cost, a.count, a.weight, a.count * a.weight AS requests,
		rate_limit_decimal(a.quota, a.unit) AS quota, rate_limit_decimal(a.remaining, a.unit) AS remaining,
		a.retry_after_ms / 1000.0::float8 AS retry_after, a.duration_us / 1000000.0::float8 AS duration,
		a.also, a.id, a.xmin, a.model, replace(a.reason, '_', ' ')
			|| coalesce(' of the model ' || to_json(a.model), '') AS cause, a.unit
	FROM rate_limit_audit a;

-- The requests of each sender in a period, by the audit log: all, the refused ones, and overloaded and failed
-- ones together. A sampled row counts as all requests that it represents. A sender is a user with the key of
-- a limit, or with an address if there is no key. With by => path, the host and the path replace the sender.
-- limit_prefix selects limits, as audit --prefix does. If the period has more than max_rows rows, about as
-- many are read (percent_read of all), and the numbers are estimates. max_rows => NULL reads all, at 1.3
-- seconds for each million rows.
--
-- No index has the senders, so the numbers of a period with many rows are estimated from a sample of its
-- pages. COLLATE "C" halves the time of sorting.
CREATE OR REPLACE FUNCTION rate_limit_top(since timestamptz, until timestamptz DEFAULT now(),
	by text DEFAULT 'sender', limit_prefix text DEFAULT '', max_rows bigint DEFAULT 500000)
RETURNS TABLE (prefix text, name text, user_id text, requests bigint, refused bigint, failed bigint,
	last timestamptz, percent_read numeric) LANGUAGE plpgsql SET jit = off SET work_mem = '64MB' AS $$
DECLARE
	plan json;
	part float8; -- the fraction of the pages that is read
BEGIN
	IF $3 IN ('sender', 'path') IS NOT TRUE THEN
		RAISE EXCEPTION 'by: %: must be sender or path', to_json($3)
			USING ERRCODE = 'invalid_parameter_value';
	END IF;
	EXECUTE format('EXPLAIN (FORMAT JSON) SELECT FROM rate_limit_audit WHERE time >= %L AND time < %L', $1,
		$2) INTO plan;
	part := least(1, max_rows / greatest(1, (plan -> 0 -> 'Plan' ->> 'Plan Rows')::float8));
	RETURN QUERY SELECT c.prefix, c.name, c.user_id, round(sum(c.requests) / part)::bigint,
		round(coalesce(sum(c.requests) FILTER (WHERE c.refused), 0) / part)::bigint,
		round(coalesce(sum(c.count) FILTER (WHERE c.outcome IN ('overloaded', 'failed')), 0) / part)::bigint,
		max(c.time), nullif(round(100 * part::numeric, 2), 100)
	FROM (SELECT CASE $3 WHEN 'sender' THEN a.prefix END COLLATE "C" AS prefix,
			CASE $3 WHEN 'sender' THEN coalesce(a.key, host(a.address))
				ELSE coalesce(a.host, '') || a.path END COLLATE "C" AS name,
			CASE $3 WHEN 'sender' THEN a.user_id END COLLATE "C" AS user_id, a.count * a.weight AS requests,
			a.outcome NOT IN ('admitted', 'overloaded', 'failed') AS refused, a.count, a.outcome, a.time
		FROM (SELECT * FROM rate_limit_audit WHERE part = 1 UNION ALL
			SELECT * FROM rate_limit_audit TABLESAMPLE SYSTEM (100 * part) REPEATABLE (0) WHERE part < 1) AS a
		-- A shadow row comes on top of the row of its request, and would count the request twice.
		WHERE a.time >= $1 AND a.time < $2 AND NOT a.shadow
			AND ($4 IN ('', a.prefix, a.prefix || '/' || a.limit_name) OR $4 = 'rule/'
				AND starts_with(a.prefix, $4))) AS c
	WHERE c.name IS NOT NULL OR $3 = 'sender' GROUP BY 1, 2, 3;
END $$;

-- The users, keys of limits and addresses with the most refused requests in a period, and the most frequent
-- causes, by the audit log. A cause is a limit, a rule or another reason. Each kind has at most max_rows
-- rows.
CREATE OR REPLACE FUNCTION rate_limit_refused(since timestamptz, until timestamptz DEFAULT now(),
	max_rows int DEFAULT 10)
RETURNS TABLE (kind text, prefix text, name text, requests bigint)
	LANGUAGE plpgsql STABLE SET jit = off AS $$
BEGIN
	RETURN QUERY SELECT p.kind, p.prefix, p.name, p.requests FROM (
		SELECT c.*, row_number() OVER (PARTITION BY c.kind
			ORDER BY c.requests DESC, c.name, c.prefix) AS place
		FROM (SELECT CASE 0 WHEN GROUPING(a.user_id) THEN 'users' WHEN GROUPING(a.key) THEN 'keys'
				WHEN GROUPING(a.address) THEN 'addresses' ELSE 'causes' END AS kind, a.prefix,
				coalesce(a.user_id, a.key, abbrev(a.address), a.by) AS name,
				round(sum(a.requests))::bigint AS requests
			FROM (SELECT d.*, coalesce(CASE WHEN d.reason = 'no_price' THEN d.cause END,
					nullif(concat_ws('/', d.prefix, d.limit_name), ''), d.cause) AS by
				FROM rate_limit_audited d) a
			WHERE a.time >= $1 AND a.time < $2 AND a.refused
			GROUP BY GROUPING SETS (a.user_id, (a.key, a.prefix), a.address, a.by)) AS c
		WHERE c.name IS NOT NULL) AS p
	WHERE p.place <= $3 ORDER BY p.kind, p.place;
END $$;

-- What the requests of a user and of all below it have cost on a limit, rule/RULE/LIMIT, in a unit of tokens
-- or money, from a time until another, by the ledger: each request once, whoever has the limit. NULL: it has
-- none, or is on another server.
--
-- The ledger and the policy may be on other servers.
CREATE OR REPLACE FUNCTION rate_limit_ledger_sum(user_id text, "from" timestamptz, until timestamptz,
	prefix text, unit text) RETURNS numeric LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('ledger') THEN
		RETURN (SELECT CASE $5 WHEN 'money' THEN rate_limit_money(sum(t.units)) ELSE sum(t.units) END
			FROM rate_limit_totals_of($1, $2, $3,
				regexp_replace(rate_limit_counted_prefix($4), '^(rule/.*):\d+$', '\1'), $5) t);
	END IF;
	RETURN NULL;
END $$;

-- A user, and all who are now below it.
CREATE OR REPLACE FUNCTION rate_limit_users_below(user_id text) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN ARRAY[$1] || CASE WHEN rate_limit_may_read('users') THEN ARRAY(
		WITH RECURSIVE below AS (SELECT u.user_id FROM rate_limit_users u WHERE u.parent = $1
			UNION ALL SELECT u.user_id FROM rate_limit_users u JOIN below b ON u.parent = b.user_id)
		SELECT b.user_id FROM below b) END;
END $$;

-- The metrics of users from a time until another: the whole days in UTC, and the hours that begin in the
-- parts of days, as long as hours are kept.
CREATE OR REPLACE FUNCTION rate_limit_metrics_of(users text[], "from" timestamptz, until timestamptz)
	RETURNS SETOF rate_limit_metrics LANGUAGE sql STABLE AS $$
	SELECT m.* FROM rate_limit_metrics m WHERE m.granularity = 'day' AND m.user_id = ANY ($1)
		AND m.time >= $2 AND m.time < date_trunc('day', $3, 'UTC')
	UNION ALL
	SELECT m.* FROM rate_limit_metrics m WHERE m.granularity = 'hour' AND m.user_id = ANY ($1)
		AND m.time >= $2 AND m.time < $3 AND (m.time >= date_trunc('day', $3, 'UTC')
			OR m.time < date_trunc('day', $2 + interval '1 day' - interval '1 us', 'UTC'))
$$;

-- The usage of a user and of all who are now below it, from a time until another, added up in four ways: by
-- day in UTC, by API key (key_id 0: requests without an API key), by limit, and in total. In each row, the
-- columns of the other ways are NULL. Only the rows by limit have settled, which for limits of tokens or
-- money is from the ledger. The others are from rate_limit_metrics_of.
CREATE OR REPLACE FUNCTION rate_limit_usage(user_id text, "from" timestamptz, until timestamptz)
RETURNS TABLE (day date, key_id bigint, prefix text, limit_name text, unit text, requests bigint,
	refused bigint, settled numeric, last_request timestamptz) LANGUAGE sql STABLE AS $$
	SELECT m.day, m.key_id, m.prefix, m.limit_name, nullif(m.unit, ''),
		rate_limit_add(sum(m.requests), 0),
		rate_limit_add(sum(m.requests - m.admitted - m.overloaded - m.failed), 0),
		CASE WHEN m.prefix IS NOT NULL THEN coalesce(CASE WHEN m.unit <> '' THEN rate_limit_ledger_sum(
			$1, $2, $3, concat_ws('/', m.prefix, nullif(m.limit_name, '')), m.unit) END,
			rate_limit_decimal(rate_limit_add(sum(m.settled), 0), m.unit)) END,
		max(m.last_request)
	FROM (SELECT *, (time AT TIME ZONE 'UTC')::date AS day
		FROM rate_limit_metrics_of(rate_limit_users_below($1), $2, $3)) m
	GROUP BY GROUPING SETS ((m.day), (m.key_id), (m.prefix, m.limit_name, m.unit), ()) ORDER BY 1, 2, 3, 4, 5
$$;

-- The rows of rate_limit_usage from first to last, which are days in UTC.
CREATE OR REPLACE FUNCTION rate_limit_usage_between(user_id text, first date, last date)
RETURNS TABLE (day date, key_id bigint, prefix text, limit_name text, unit text, requests bigint,
	refused bigint, settled numeric, last_request timestamptz) LANGUAGE sql STABLE AS $$
	SELECT * FROM rate_limit_usage($1, $2::timestamp AT TIME ZONE 'UTC',
		($3 + 1)::timestamp AT TIME ZONE 'UTC')
$$;

-- The requests of all proxies in each minute with requests, by outcome.
--   refused: Requests that a decision refused.
--   undecided: Requests without a decision: overloaded or failed.
CREATE OR REPLACE VIEW rate_limit_minutes WITH (security_invoker) AS
	SELECT time, sum(admitted)::bigint AS admitted, sum(limited)::bigint AS limited,
		sum(blocked)::bigint AS blocked, sum(rejected)::bigint AS rejected,
		sum(overloaded)::bigint AS overloaded, sum(failed)::bigint AS failed, sum(shadow)::bigint AS shadow,
		sum(requests - admitted - overloaded - failed)::bigint AS refused,
		sum(overloaded + failed)::bigint AS undecided
	FROM rate_limit_metrics WHERE granularity = 'minute' GROUP BY time;

-- Says why a sender was refused: the latest minute, in the day up to the minute of at, with a request that
-- was refused or had no decision. Each row is a sentence about one kind of request and cause, the latest
-- first. requests counts all of the kind, and the other columns describe the latest one. who is a user, an
-- address, the key of a counter, or # and the id of an API key. at is a time, or a time of day, such as
-- 14:05, for the latest one in UTC.
--
-- UNION ALL instead of OR lets each of the four ways to find a sender use its index.
CREATE OR REPLACE FUNCTION rate_limit_why(who text, at text DEFAULT 'now')
RETURNS TABLE (summary text, "time" timestamptz, outcome text, reason text, prefix text, limit_name text,
	key text, user_id text, key_id bigint, address inet, method text, host text, path text, status integer,
	requests bigint, quota numeric, remaining numeric, retry_after float8, node text, model text, unit text)
	LANGUAGE plpgsql STABLE SET jit = off AS $$
#variable_conflict use_column
DECLARE
	-- $1 as keys of counters contain it: escaped or not, with or without the number of an alternative
	keys CONSTANT text[] := rate_limit_key_forms(ARRAY[$1, rate_limit_counter_key($1)]);
	number CONSTANT bigint := substring($1 FROM '^#([1-9][0-9]{0,17})$');
	today CONSTANT timestamp := now() AT TIME ZONE 'UTC';
	until timestamptz;
	ip inet;
	minute timestamptz;
BEGIN
	BEGIN
		ip := $1;
	EXCEPTION WHEN invalid_text_representation THEN
		NULL; -- not an address
	END;
	BEGIN
		until := CASE WHEN $2 ~ '^\d?\d:\d\d(:\d\d)?$' THEN (today::date + $2::time
			- CASE WHEN $2::time > today::time THEN interval '1 day' ELSE '0' END) AT TIME ZONE 'UTC'
			ELSE $2::timestamptz END;
		IF isfinite(until) IS NOT TRUE THEN
			RAISE data_exception;
		END IF;
		until := date_trunc('minute', until) + interval '1 minute';
	EXCEPTION WHEN data_exception THEN
		RAISE EXCEPTION 'at: %: must be a time such as 14:05, the latest one in UTC, or 2026-11-27 14:05Z',
			to_json($2) USING ERRCODE = 'invalid_parameter_value';
	END;
	SELECT date_trunc('minute', max(f.time)) INTO minute FROM (
		SELECT * FROM rate_limit_audit WHERE user_id = $1
		UNION ALL SELECT * FROM rate_limit_audit WHERE key = ANY (keys)
		UNION ALL SELECT * FROM rate_limit_audit WHERE key_id = number
		UNION ALL SELECT * FROM rate_limit_audit WHERE address = ip) AS f
	WHERE f.time >= until - interval '1 day' AND f.time < until AND f.outcome <> 'admitted' AND NOT f.shadow;
	IF minute IS NULL THEN
		summary := concat(CASE WHEN until > now() THEN 'The audit log is up to 2 s behind: if the request '
			'was just now, ask again. ' END,
			format('No refusal of %s is recorded in the day before %s UTC.', $1,
			to_char(until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')));
		RETURN NEXT;
		RETURN;
	END IF;
	RETURN QUERY SELECT format('%s %s%s %s UTC, %s %s%s: %s.', concat($1,
			-- who may be the number of the API key, or the key of a counter with this number
			CASE WHEN $1 ~ '^(#|[1-9][|])?[0-9]+$' AND a.key_id IS NOT NULL
				THEN format(' (%s)', concat_ws(', ', 'API key ' || a.key_id,
					rate_limit_key_name(a.key_id))) END),
			CASE WHEN a.outcome NOT IN ('overloaded', 'failed') THEN 'was refused'
				WHEN a.status > 0 THEN 'was refused without a decision' ELSE 'passed without a decision' END,
			CASE WHEN a.total = 1 THEN ' at' ELSE ' ' || a.total || ' times within a minute, last at' END,
			to_char(a.time AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), a.method, a.host, a.path,
			CASE WHEN a.outcome = 'limited' THEN concat('the limit ', concat_ws('/', a.prefix, a.limit_name),
				' of ' || CASE WHEN a.key <> a.user_id THEN a.key END,
				CASE WHEN a.reason = 'no_quota' THEN ' has a quota of 0'
				ELSE concat(' had ', rate_limit_readable(a.remaining), ' of ', concat_ws(' ',
					rate_limit_readable(a.quota), replace(a.unit, '_', ' ')), ' left', CASE
					WHEN a.retry_after > 0
					THEN format(', and would have let it pass %s later', CASE
						WHEN a.retry_after <= 120 THEN ceil(a.retry_after) || ' s'
						WHEN a.retry_after <= 7200 THEN ceil(a.retry_after / 60) || ' min'
						ELSE ceil(a.retry_after / 3600) || ' h' END) END) END)
			WHEN a.outcome = 'blocked' AND a.prefix <> '' THEN concat('the rule ', a.prefix, ' blocks')
			ELSE coalesce(a.cause, a.outcome) END),
		a.time, a.outcome, a.reason, a.prefix, a.limit_name, a.key, a.user_id, a.key_id, a.address, a.method,
		a.host, a.path, a.status, a.total, a.quota, a.remaining, a.retry_after, a.node,
		a.model, a.unit
	FROM (SELECT f.*, row_number() OVER (kind ORDER BY f.time DESC) AS place,
			round(sum(f.requests) OVER kind)::bigint AS total
		FROM rate_limit_audited f WHERE f.time >= minute AND f.time < minute + interval '1 minute'
			AND f.outcome <> 'admitted' AND NOT f.shadow
			AND (f.user_id = $1 OR f.key = ANY (keys) OR f.key_id = number OR f.address = ip)
		WINDOW kind AS (PARTITION BY f.outcome, f.reason, f.prefix, f.limit_name, f.method, f.host, f.path,
			f.status, f.model)) AS a
	WHERE a.place = 1 ORDER BY a.time DESC LIMIT 100;
END $$;
