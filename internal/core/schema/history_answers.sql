-- The queries of commands and the page on the history.

CREATE OR REPLACE VIEW rate_limit_audited AS
	SELECT a.time, a.decision, a.decision IN ('limited', 'blocked', 'rejected') AS refused, a.reason,
		a.prefix, a.limit_name, a.key, a.user_id, a.key_id, a.tier,
		a.address, a.host, a.method, a.path, a.node, a.region, a.status, a.cost, a.count, a.weight,
			a.count * a.weight AS requests, a.quota, a.remaining,
		a.retry_after_ms / 1000.0::float8 AS retry_after, a.duration_us / 1000000.0::float8 AS duration,
		a.also, a.id, a.xmin
	FROM rate_limit_audit a;
COMMENT ON VIEW rate_limit_audited IS
	'The audit log for people. Conditions on time, user_id and decision are as fast as on rate_limit_audit.';
COMMENT ON COLUMN rate_limit_audited.refused IS
	'Whether the requests were refused: limited, blocked or rejected. Requests without a decision are not.';
COMMENT ON COLUMN rate_limit_audited.requests IS
	'How many requests the row stands for, estimated if only a sample is recorded.';
COMMENT ON COLUMN rate_limit_audited.retry_after IS
	'Of a refusal: the time until the request would pass, in seconds. NULL: the request passed, it would '
	'never pass, or the time is not known.';
COMMENT ON COLUMN rate_limit_audited.duration IS 'How long the decision took, in seconds.';
COMMENT ON COLUMN rate_limit_audited.xmin IS
	'The transaction that wrote the row: the last 32 bits of its number.';
-- Postgres inlines this body, and so plans it for the requested period. It only inlines a function without
-- a search_path of its own. Long periods use the hours of the metrics, because minutes are deleted after
-- some days.
DO $do$ BEGIN
	EXECUTE replace($sql$
CREATE OR REPLACE FUNCTION rate_limit_top(since timestamptz, until timestamptz DEFAULT now(),
	lists text[] DEFAULT '{senders}', of text DEFAULT '')
RETURNS TABLE (list text, prefix text, name text, user_id text, requests bigint, refused bigint,
	failed bigint, last timestamptz) LANGUAGE sql STABLE AS $$
	SELECT c.list, c.prefix, c.name, c.user_id, round(sum(c.requests))::bigint,
		round(coalesce(sum(c.requests) FILTER (WHERE c.refused), 0))::bigint,
		coalesce(sum(c.count) FILTER (WHERE c.decision = 'error'), 0)::bigint, max(c.time)
	FROM (SELECT l.list, CASE WHEN l.list IN ('senders', 'keys') THEN a.prefix END AS prefix,
			CASE l.list WHEN 'senders' THEN coalesce(a.key, host(a.address)) WHEN 'keys'
				THEN coalesce(a.key, host(a.address)) WHEN 'users' THEN a.user_id
				WHEN 'addresses' THEN abbrev(a.address) WHEN 'paths' THEN coalesce(a.host, '') || a.path
					WHEN 'reasons' THEN CASE WHEN a.prefix = '' AND a.refused THEN a.reason END
				WHEN 'log' THEN '' END AS name,
			CASE l.list WHEN 'senders' THEN a.user_id END AS user_id, a.requests, a.refused, a.count,
				a.decision, a.time
		-- A row of decision shadow stands beside the row of its request.
		FROM {schema}.rate_limit_audited a CROSS JOIN unnest(array_remove($3, 'limits')) AS l(list)
			WHERE a.time >= $1 AND a.time < $2 AND a.decision <> 'shadow'
			AND ($4 IN ('', a.prefix, a.prefix || '/' || a.limit_name) OR $4 = 'rule/'
				AND starts_with(a.prefix, $4))) AS c
	WHERE c.name IS NOT NULL OR c.list = 'senders' GROUP BY c.list, c.prefix, c.name, c.user_id
	UNION ALL
	SELECT 'limits', NULL, m.prefix, NULL, sum(m.requests)::bigint,
		sum(m.limited + m.blocked + m.rejected)::bigint, sum(m.errors)::bigint, NULL
	FROM (SELECT prefix, requests, limited, blocked, rejected, errors FROM {schema}.rate_limit_metrics
		WHERE 'limits' = ANY ($3) AND granularity = CASE WHEN $2 - $1 > interval '25 h' THEN 'hour'
			ELSE 'minute' END AND time >= $1 AND time < $2) AS m
	WHERE $4 IN ('', m.prefix) OR $4 = 'rule/' AND starts_with(m.prefix, $4) GROUP BY m.prefix
$$;
$sql$, '{schema}', quote_ident(current_schema()));
END $do$;
COMMENT ON FUNCTION rate_limit_top(timestamptz, timestamptz, text[], text) IS
	'How many requests of a period came from whom, and how many of them were refused or had no decision. A '
	'sample counts as what it stands for. lists are, by the audit log: senders (the key of a limit, or else '
	'the address, with the user), keys (of limits), users, addresses, paths (with their hosts), reasons (of '
	'requests that no limit refused), log (all together); and limits, by the metrics of minutes, or of hours '
	'if the period is longer than 25 hours. of is as --prefix of the command audit.';
REVOKE ALL ON FUNCTION rate_limit_top(timestamptz, timestamptz, text[], text) FROM PUBLIC;

CREATE OR REPLACE FUNCTION rate_limit_usage_between(user_id text, first date, last date)
RETURNS TABLE (day date, key_id bigint, prefix text, limit_name text, requests bigint, refused bigint,
	charged bigint, settled bigint, last_request timestamptz) LANGUAGE sql STABLE AS $$
	SELECT (m.time AT TIME ZONE 'UTC')::date, m.key_id, m.prefix, m.limit_name,
		rate_limit_add(coalesce(sum(m.requests), 0), 0),
		rate_limit_add(coalesce(sum(m.limited + m.blocked + m.rejected), 0), 0),
		rate_limit_add(coalesce(sum(m.charged), 0), 0), rate_limit_add(coalesce(sum(m.settled), 0), 0),
		max(m.last_request)
	FROM rate_limit_metrics m WHERE m.granularity = 'day' AND m.user_id = $1
		AND m.time >= $2::timestamp AT TIME ZONE 'UTC' AND m.time < ($3 + 1)::timestamp AT TIME ZONE 'UTC'
	GROUP BY GROUPING SETS ((m.time), (m.key_id), (m.prefix, m.limit_name), ()) ORDER BY 1, 2, 3, 4
$$;
COMMENT ON FUNCTION rate_limit_usage_between(text, date, date) IS
	'What a user did on some days in UTC: a row for each day with a request, for each API key (0: without '
	'one), and for each limit, without what it is not about, and a row without all of them for all. Units of '
	'different limits are not comparable: use those of the rows of limits.';

CREATE OR REPLACE VIEW rate_limit_minutes AS
	SELECT time, sum(allowed)::bigint AS allowed, sum(limited + blocked + rejected)::bigint AS refused,
		sum(errors)::bigint AS failed, sum(shadow)::bigint AS shadow
	FROM rate_limit_metrics WHERE granularity = 'minute' GROUP BY time;
COMMENT ON VIEW rate_limit_minutes IS 'The requests of all proxies in each minute that had one.';
COMMENT ON COLUMN rate_limit_minutes.time IS 'When the minute begins.';
COMMENT ON COLUMN rate_limit_minutes.allowed IS 'Requests that passed.';
COMMENT ON COLUMN rate_limit_minutes.refused IS
	'Requests that a limit, a ban, a rule, or the check of the API key refused.';
COMMENT ON COLUMN rate_limit_minutes.failed IS 'Requests without a decision.';
COMMENT ON COLUMN rate_limit_minutes.shadow IS 'Refusals that shadow rules would have made.';

CREATE OR REPLACE FUNCTION rate_limit_is_about(who text, keys text[], user_id text, key text, key_id bigint,
	address inet) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN user_id = who OR key = ANY (keys) OR key_id = substring(who FROM '^#([1-9][0-9]{0,17})$')::bigint
	OR who ~ '^[0-9a-f]*[.:][0-9a-f.:/]*$' AND (host(address) = who OR address::text = who);
COMMENT ON FUNCTION rate_limit_is_about IS
	'Whether a row of the audit log is about somebody, for rate_limit_why. keys are those that '
	'counters may have.';

-- A user is found by the index of users. Else each decision is read from its latest row on: decision <>
-- 'allowed' lets the planner use the partial index for a decision that is a variable.
CREATE OR REPLACE FUNCTION rate_limit_why(who text, at timestamptz DEFAULT now())
RETURNS TABLE (said text, "time" timestamptz, decision text, reason text, prefix text, limit_name text,
	key text, user_id text, key_id bigint, address inet, method text, host text, path text, status integer,
	requests bigint, quota bigint, remaining bigint, retry_after float8, node text)
	LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
	-- as counters have it
	keys CONSTANT text[] := ARRAY(SELECT p || k
		FROM unnest(string_to_array(',1|,2|,3|,4|,5|,6|,7|,8|,9|', ',')) AS p,
			unnest(ARRAY[$1, replace(replace($1, '%', '%25'), ' ', '%20')]) AS k);
	minute timestamptz;
BEGIN
	SELECT date_trunc('minute', max(a.time)) INTO minute FROM rate_limit_audited a
	WHERE a.user_id = $1 AND a.time < date_trunc('minute', $2) + interval '1 minute'
		AND a.time >= $2 - interval '1 day' AND a.decision IN ('limited', 'blocked', 'rejected', 'error');
	IF minute IS NULL THEN
		SELECT date_trunc('minute', max(f.time)) INTO minute
		FROM unnest('{limited,blocked,rejected,error}'::text[]) AS d
		CROSS JOIN LATERAL (SELECT a.time FROM rate_limit_audited a
			WHERE a.decision = d AND a.decision <> 'allowed' AND a.time >= $2 - interval '1 day'
				AND a.time < date_trunc('minute', $2) + interval '1 minute'
				AND rate_limit_is_about($1, keys, NULL, a.key, a.key_id, a.address)
			ORDER BY a.time DESC LIMIT 1) AS f;
	END IF;
	IF minute IS NULL THEN
		RETURN QUERY SELECT format('No refusal of %s is recorded in the day before %s UTC.', $1,
				to_char($2 AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')),
			NULL::timestamptz, NULL, NULL, NULL, NULL, NULL, NULL, NULL::bigint, NULL::inet, NULL, NULL, NULL,
			NULL::int, NULL::bigint, NULL::bigint, NULL::bigint, NULL::float8, NULL;
		RETURN;
	END IF;
	RETURN QUERY SELECT format('%s %s%s at %s UTC, %s %s%s: %s.', $1,
			CASE a.decision WHEN 'error' THEN 'had no decision' ELSE 'was refused' END,
			CASE WHEN a.count * a.weight > 1 THEN ' ' || round(a.count * a.weight) || ' times' END,
			to_char(a.time AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), a.method, a.host, a.path,
			CASE WHEN a.decision = 'limited' THEN concat('the limit ', concat_ws('/', a.prefix, a.limit_name),
				CASE WHEN a.reason = 'no_quota' THEN ' has a quota of 0'
				ELSE concat(' had ', a.remaining, ' of ', a.quota, ' left', CASE WHEN a.retry_after > 0
					THEN format(', and would have let it pass %s s later', ceil(a.retry_after)) END) END)
			WHEN a.decision = 'blocked' AND a.prefix <> '' THEN concat('the rule ', a.prefix, ' blocks')
			ELSE replace(a.reason, '_', ' ') END),
		a.time, a.decision, a.reason, a.prefix, a.limit_name, a.key, a.user_id, a.key_id, a.address, a.method,
		a.host, a.path, a.status, round(a.requests)::bigint, a.quota, a.remaining, a.retry_after, a.node
	FROM rate_limit_audited a WHERE a.time >= minute AND a.time < minute + interval '1 minute'
		AND a.decision IN ('limited', 'blocked', 'rejected', 'error')
		AND rate_limit_is_about($1, keys, a.user_id, a.key, a.key_id, a.address)
	ORDER BY a.time DESC LIMIT 100;
END $$;
COMMENT ON FUNCTION rate_limit_why(text, timestamptz) IS
	'Why requests of somebody were refused, or had no decision, in the minute of a time, or in the last '
	'minute of the day before it that has some: a sentence for each row of the audit log, the latest first. '
	'who is a user, an address, the key of a counter, or # and the id of an API key.';
REVOKE ALL ON FUNCTION rate_limit_why(text, timestamptz) FROM PUBLIC;
