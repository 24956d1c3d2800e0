-- What users have used and what it cost: the rows of the ledger, their sums, and invoices.

-- An amount of money in millionths, and rest in thousandths of one, as a number with nine decimals.
CREATE OR REPLACE FUNCTION rate_limit_money(units numeric, rest numeric DEFAULT NULL) RETURNS numeric
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN round((units + coalesce(rest, 0) * 0.001) * 0.000001, 9);

-- The name by which a user counts and is in the ledger: the first one of a renamed user.
--
-- The policy may be on another server.
CREATE OR REPLACE FUNCTION rate_limit_counted_user(user_id text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('users') THEN
		RETURN coalesce((SELECT u.counted_as FROM rate_limit_users u WHERE u.user_id = $1), $1);
	END IF;
	RETURN $1;
END $$;

-- The users with another name than that by which they count, if the role may read them.
--
-- The policy may be on another server.
CREATE OR REPLACE FUNCTION rate_limit_renamed() RETURNS TABLE (counted text, user_id text)
	LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('users') THEN
		RETURN QUERY SELECT u.counted_as, u.user_id FROM rate_limit_users u WHERE u.counted_as IS NOT NULL;
	END IF;
END $$;

-- A query for the rows of rate_limit_ledger_source with the columns of rate_limit_ledger_rows.
--
-- Numbers with nine decimals have the type that archives have, too.
CREATE OR REPLACE FUNCTION rate_limit_ledger_lines(source text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN format('SELECT l.time, l.day, l.id, l.user_id AS "user", l.key_id, l.ancestors, l.model,
		l.input, l.cache_read, l.cache_write, l.output,
		rate_limit_money(l.money, l.remainder)::numeric(38, 9) AS money,
		(SELECT jsonb_agg(CASE c ->> ''unit'' WHEN ''money'' THEN c || jsonb_build_object(''units'',
			rate_limit_money((c ->> ''units'')::numeric)) ELSE c END
			ORDER BY c ->> ''prefix'', c ->> ''key'')
			FROM jsonb_path_query(l.charges, ''$[*][*]'') c) AS charges,
		CASE WHEN l.charges IS NULL THEN l.lines::bigint ELSE 0 END AS line, l.answered,
		coalesce(l.tier, ''standard'') AS tier,
		CASE WHEN l.money IS NOT NULL THEN coalesce(l.price, l.model) END AS price, l.price_valid,
		l.cache_write_1h, l.audio_input, l.audio_cache_read, l.audio_output, l.image_input, l.image_output,
		l.search, l.estimated_input, l.estimated_output,
		rate_limit_money(l.estimated_money)::numeric(38, 9) AS estimated_money, l.kind, l.corrects,
		l.corrects_time, l.corrected_by, l.reason FROM (%s) l', source);
END $$;

-- What requests have cost, if they were settled in a time: a row for each request, also on Citus, and one for
-- each further model of its response (line 1 and so on), without charges. Corrections that were made in that
-- time have rows of their own, by kind. user_id selects the requests of a user, and with below also of all
-- who were below it then.
--
-- A day is in UTC, and the session can have any TimeZone.
CREATE OR REPLACE FUNCTION rate_limit_ledger_rows("from" timestamptz DEFAULT '-infinity',
	until timestamptz DEFAULT 'infinity', user_id text DEFAULT NULL, below boolean DEFAULT false)
RETURNS TABLE ("time" timestamptz, day date, id uuid, "user" text, key_id bigint, ancestors text[],
	model text, input bigint, cache_read bigint, cache_write bigint, output bigint, money numeric,
	charges jsonb, line bigint, answered text, tier text, price text, price_valid tstzrange,
	cache_write_1h bigint, audio_input bigint, audio_cache_read bigint, audio_output bigint,
	image_input bigint, image_output bigint, search bigint, estimated_input bigint,
	estimated_output bigint, estimated_money numeric, kind text, corrects uuid,
	corrects_time timestamptz, corrected_by text, reason text) LANGUAGE plpgsql STABLE AS $$
BEGIN
	RETURN QUERY EXECUTE rate_limit_ledger_lines(rate_limit_ledger_source(
			rate_limit_ledger_window("from", until), CASE WHEN user_id IS NOT NULL THEN
				format(CASE WHEN below THEN 'AND (user_id = %1$L '
				'OR ancestors <> ''{}'' AND ancestors @> ARRAY[%1$L])' ELSE 'AND user_id = %1$L' END,
				rate_limit_counted_user(user_id)) END))
		|| ' WHERE l.time >= $1 AND l.time < $2 ORDER BY 1, 3, 14' USING "from", until;
END $$;

-- What a user and all who were below it then have used from a time until another, as several rows of
-- rate_limit_totals: by model, or on a limit in a unit. each: a row for each of them that has sent requests,
-- by model. user_id NULL: what all users have used in days without totals, and in parts of days.
CREATE OR REPLACE FUNCTION rate_limit_totals_of(user_id text, "from" timestamptz, until timestamptz,
	prefix text DEFAULT NULL, unit text DEFAULT NULL, each boolean DEFAULT false)
	RETURNS SETOF rate_limit_totals
	LANGUAGE plpgsql STABLE SET jit = off AS $$
DECLARE
	counted CONSTANT text := rate_limit_counted_user($1);
	-- the whole days from first until the one before last
	first CONSTANT date := (($2 AT TIME ZONE 'UTC') + interval '1 day' - interval '1 us')::date;
	last CONSTANT date := ($3 AT TIME ZONE 'UTC')::date;
	edges CONSTANT date[] := array_remove(ARRAY[CASE WHEN first > ($2 AT TIME ZONE 'UTC')::date
		THEN first - 1 END, CASE WHEN last < $3 AT TIME ZONE 'UTC' THEN last END], NULL);
	summed CONSTANT date[] := ARRAY(SELECT p.day FROM rate_limit_ledger_parts() p WHERE p.summed
		AND rate_limit_ledger_window($2, $3) @> p.day);
	open CONSTANT datemultirange := rate_limit_ledger_window($2, $3) - (SELECT
		coalesce(range_agg(daterange(d, d + 1)), '{}') FROM unnest(summed) d);
	within CONSTANT text := ' AND time >= $1 AND time < $2 AND (time < $3 OR time >= $4 OR $5 @> day)';
	source text;
BEGIN
	IF NOT each THEN
		RETURN QUERY SELECT t.* FROM rate_limit_totals t WHERE t.user_id = counted AND t.settled >= first
			AND t.settled < last AND t.day = ANY (summed)
			AND (t.prefix, t.unit) IS NOT DISTINCT FROM ($4, $5);
	ELSIF counted IS NOT NULL THEN
		-- Sums by model have an n above 0, so that the primary key finds them.
		RETURN QUERY SELECT t.* FROM rate_limit_totals t WHERE t.settled >= first AND t.settled < last
			AND t.own AND (t.user_id = counted OR t.ancestors @> ARRAY[counted]) AND t.n > 0
			AND t.day = ANY (summed);
	END IF;
	source := rate_limit_ledger_source(open + (SELECT coalesce(range_agg(daterange(t.day, t.day + 1)), '{}')
			FROM rate_limit_totals t
			WHERE (counted IS NULL OR t.user_id = counted) AND t.settled = ANY (edges)
				AND t.day = ANY (summed)),
		concat(CASE WHEN counted IS NOT NULL THEN
			format('AND (user_id = %1$L OR ancestors <> ''{}'' AND ancestors @> ARRAY[%1$L])', counted) END,
			CASE WHEN to_regprocedure('rate_limit_shards()') IS NULL THEN within END));
	source := format('SELECT * FROM (%s) s WHERE true %s', source, within);
	-- With OFFSET, Postgres reads the units once.
	source := CASE WHEN $4 IS NULL THEN format('SELECT * FROM (%s) t(%s) WHERE t.own OR NOT $6',
			rate_limit_sums(source, CASE WHEN NOT each THEN counted END, false),
			(SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_attribute a
				WHERE a.attrelid = 'rate_limit_totals'::regclass AND a.attnum > 0))
		ELSE format('SELECT t.* FROM (SELECT count(*) FILTER (WHERE c.kind = ''charge'') AS requests,
				sum(c.units) AS units
			FROM (SELECT l.kind, jsonb_path_query_first(l.charges, %L)::numeric AS units
				FROM (%s) l OFFSET 0) c WHERE c.units IS NOT NULL HAVING count(*) > 0) u,
			jsonb_populate_record(NULL::rate_limit_totals, to_jsonb(u)) t', format('$[*][*] ? (@.unit == %s '
			'&& (@.prefix == %s || @.prefix starts with %s && @.prefix starts with "rule/")).units',
			to_json($5), to_json($4), to_json($4 || ':')), source) END;
	RETURN QUERY EXECUTE source USING $2, $3, first::timestamp AT TIME ZONE 'UTC',
		last::timestamp AT TIME ZONE 'UTC', open, each AND counted IS NOT NULL;
END $$;

-- Fails if neither the policy nor the history nor the ledger knows a user.
--
-- The policy and the history may be on other servers.
CREATE OR REPLACE FUNCTION rate_limit_require_user(user_id text) RETURNS void LANGUAGE plpgsql STABLE AS $$
DECLARE
	known boolean;
BEGIN
	IF rate_limit_may_read('users') THEN
		known := EXISTS (SELECT FROM rate_limit_users u WHERE u.user_id = $1);
	END IF;
	IF known IS NOT TRUE AND rate_limit_may_read('metrics') THEN
		known := EXISTS (SELECT FROM rate_limit_metrics m WHERE m.user_id = $1);
	END IF;
	IF known IS NOT TRUE AND NOT EXISTS (SELECT FROM rate_limit_totals_of($1, '-infinity', 'infinity')) THEN
		RAISE EXCEPTION 'user: %: must be in the policy, the metrics or the ledger', to_json($1)
			USING ERRCODE = 'no_data_found';
	END IF;
END $$;

-- The calendar limits in money that count users or keys of each tier. place 1 is the longest.
--
-- A request is taken to match all conditions of a rule but the tiers. No override changes a calendar.
CREATE OR REPLACE FUNCTION rate_limit_calendars()
RETURNS TABLE (tier text, place bigint, rule text, limit_name text, unit text, zone text)
	LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('tiers', 'rules', 'rule_limits') THEN
		RETURN QUERY SELECT t.tier, row_number() OVER (PARTITION BY t.tier ORDER BY
				array_position('{year,month,week,day}', l.calendar), r.priority DESC, r.name, l.name),
			r.name, l.name, l.calendar, coalesce(rate_limit_known_zone(l.time_zone), 'UTC')
		FROM rate_limit_rule_limits l JOIN rate_limit_rules r ON r.name = l.rule
			JOIN (SELECT k.tier FROM rate_limit_tiers k UNION VALUES ('anonymous')) t
				ON r.tiers IS NULL OR t.tier = ANY (r.tiers)
		WHERE l.unit = 'money' AND l.calendar IS NOT NULL AND r.mode <> 'off' AND r.valid @> now()
			AND EXISTS (SELECT FROM unnest(r.count_by) d WHERE d ~ '^(key[|])?user([|]|$)|^key$')
			AND NOT EXISTS (SELECT FROM rate_limit_rules o WHERE o.family = r.family AND o.mode = 'enforce'
				AND o.valid @> now() AND (o.tiers IS NULL OR t.tier = ANY (o.tiers))
				AND (-o.priority, o.name) < (-r.priority, r.name)
				AND rate_limit_conditions(r) || rate_limit_conditions(o) = rate_limit_conditions(r));
	END IF;
END $$;

-- The billing periods of users, by the names by which they count: a unit of the calendar in a time zone.
-- Months start on a day, or on their last one. They follow period_start and time_zone of the user, or else
-- the longest calendar limit in money of the user's tier, or else are months in UTC. users NULL: all users of
-- the policy, and the empty name for who is not in it.
CREATE OR REPLACE FUNCTION rate_limit_billing(users text[])
RETURNS TABLE (counted text, unit text, zone text, day int) LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF rate_limit_may_read('users') THEN
		RETURN QUERY SELECT n.name, CASE WHEN o.own THEN 'month' ELSE coalesce(c.unit, 'month') END,
			coalesce(CASE WHEN o.own THEN rate_limit_known_zone(u.time_zone) END, c.zone, 'UTC'),
			coalesce(extract(day FROM u.period_start)::int, 1)
		FROM (SELECT unnest(coalesce($1, '{""}')) UNION ALL
				SELECT coalesce(a.counted_as, a.user_id) FROM rate_limit_users a WHERE $1 IS NULL) n(name)
			LEFT JOIN rate_limit_users u ON coalesce(u.counted_as, u.user_id) = n.name
			CROSS JOIN LATERAL (SELECT u.period_start IS NOT NULL OR u.time_zone <> 'UTC' AS own) o
			LEFT JOIN rate_limit_calendars() c ON c.tier = coalesce(u.tier, 'anonymous') AND c.place = 1;
	ELSE
		RETURN QUERY SELECT n.name, 'month', 'UTC', 1 FROM unnest(coalesce($1, '{""}')) n(name);
	END IF;
END $$;

-- When a day starts in a time zone, as proxies compute it.
CREATE OR REPLACE FUNCTION rate_limit_midnight(day timestamp, zone text) RETURNS timestamptz
	LANGUAGE sql STABLE PARALLEL SAFE
RETURN (SELECT {midnight} FROM (SELECT $2 AS zone) p);

-- The periods of a result of rate_limit_billing in a time, as a whole.
CREATE OR REPLACE FUNCTION rate_limit_calendar_periods(unit text, zone text, day int, "from" timestamptz,
	until timestamptz) RETURNS TABLE (starts timestamptz, ends timestamptz) LANGUAGE sql STABLE ROWS 2 AS $$
	SELECT p.* FROM (SELECT ('1 ' || $1)::interval AS step, interval '1 day' AS one, $3 - 1 AS days) i,
		generate_series(date_trunc($1, $4 AT TIME ZONE $2) - step, $5 AT TIME ZONE $2 + one, step) m,
		LATERAL (SELECT rate_limit_midnight(least(m + days * one, m + step - one), $2) AS starts,
			rate_limit_midnight(least(m + step + days * one, m + step + step - one), $2) AS ends) p
	WHERE p.starts <= $5 AND p.ends > $4 ORDER BY 1
$$;

-- The billing periods of a user in a time, as a whole.
CREATE OR REPLACE FUNCTION rate_limit_whole_periods(user_id text, "from" timestamptz, until timestamptz)
RETURNS TABLE (starts timestamptz, ends timestamptz) LANGUAGE sql STABLE ROWS 2 AS $$
	SELECT p.* FROM rate_limit_billing(ARRAY[rate_limit_counted_user($1)]) b,
		rate_limit_calendar_periods(b.unit, b.zone, b.day, $2, $3) p ORDER BY 1
$$;

-- The billing periods of a user in a time, cut to it. Without a time, the period that is running.
CREATE OR REPLACE FUNCTION rate_limit_periods(user_id text, "from" timestamptz, until timestamptz)
RETURNS TABLE (starts timestamptz, ends timestamptz) LANGUAGE plpgsql STABLE ROWS 2 AS $$
BEGIN
	IF NOT rate_limit_may_read('users') THEN
		IF num_nonnulls($2, $3) < 2 THEN
			RAISE EXCEPTION 'from, until: must be given: the policy with the periods of users is not in this '
				'database' USING ERRCODE = 'invalid_parameter_value';
		END IF;
		RETURN QUERY SELECT $2, $3;
		RETURN;
	END IF;
	-- A time can be infinite, but there is nothing before the first ledger, or in the future.
	$2 := CASE WHEN $2 IS NOT NULL THEN least(greatest($2, '2000-01-01Z'), now()) END;
	$3 := CASE WHEN $3 IS NOT NULL THEN least($3, now() + interval '1 month') END;
	RETURN QUERY SELECT greatest(p.starts, $2), least(p.ends, $3)
		FROM rate_limit_whole_periods($1, coalesce($2, now()), coalesce($3, now())) p
		WHERE p.starts <= now() AND p.starts < coalesce($3, 'infinity') ORDER BY 1;
END $$;

-- What a user and all who were below it then have used from a time until another, by billing period and
-- model; by_user: and by who has sent the requests, with its parent then. Without times: in the period that
-- is running. money NULL: the model had no price. input and the columns of other parts have no tokens in
-- common. The estimates are parts of input, output and money. corrects is the start of a period that was
-- billed again. NULL: requests of the period itself.
CREATE OR REPLACE FUNCTION rate_limit_invoice(user_id text, "from" timestamptz DEFAULT NULL,
	until timestamptz DEFAULT NULL, by_user boolean DEFAULT false)
RETURNS TABLE (period timestamptz, model text, requests bigint, input bigint, cache_read bigint,
	cache_write bigint, output bigint, money numeric, cache_write_1h bigint, audio_input bigint,
	audio_cache_read bigint, audio_output bigint, image_input bigint, image_output bigint, search bigint,
	estimated_input bigint, estimated_output bigint, estimated_money numeric, currency text, "user" text,
	parent text, corrects timestamptz) LANGUAGE sql STABLE AS $$
	WITH t AS MATERIALIZED (
		SELECT p.starts, CASE WHEN $4 THEN t.user_id END AS sender,
			CASE WHEN $4 AND t.user_id <> u THEN t.ancestors[1] END AS above, t.*
		FROM rate_limit_counted_user($1) u, rate_limit_periods($1, $2, $3) p,
			rate_limit_totals_of($1, p.starts, p.ends, each => $4) t
		WHERE $1 IS NOT NULL
	), r AS MATERIALIZED (
		SELECT r.* FROM rate_limit_renamed() r WHERE $4
	), c AS MATERIALIZED (
		SELECT c.* FROM (SELECT min(t.corrects) AS first, max(t.corrects) AS last FROM t) r,
			rate_limit_whole_periods($1, r.first, r.last) c
	)
	SELECT t.starts, t.model, sum(t.requests)::bigint, coalesce(sum(t.input), 0)::bigint,
		coalesce(sum(t.cache_read), 0)::bigint, coalesce(sum(t.cache_write), 0)::bigint,
		coalesce(sum(t.output), 0)::bigint,
		rate_limit_money(sum(t.money), sum(t.remainder)),
		sum(t.cache_write_1h)::bigint, sum(t.audio_input)::bigint, sum(t.audio_cache_read)::bigint,
		sum(t.audio_output)::bigint, sum(t.image_input)::bigint, sum(t.image_output)::bigint,
		sum(t.search)::bigint, sum(t.estimated_input)::bigint, sum(t.estimated_output)::bigint,
		rate_limit_money(sum(t.estimated_money)),
		(SELECT max(r.currency) FROM rate_limit_ledger_retention r),
		coalesce(s.user_id, nullif(t.sender, '')), coalesce(a.user_id, nullif(t.above, '')), c.starts
	FROM t LEFT JOIN c ON t.corrects >= c.starts AND t.corrects < c.ends
		LEFT JOIN r s ON s.counted = t.sender LEFT JOIN r a ON a.counted = t.above
	GROUP BY t.starts, t.model, t.sender, t.above, s.user_id, a.user_id, c.starts
	ORDER BY 1, c.starts NULLS FIRST, t.sender, t.above, 2
$$;
