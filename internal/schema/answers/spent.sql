-- What was spent, for people who look at it. It is from the totals, and from the rows of days without totals.

CREATE OR REPLACE FUNCTION rate_limit_spent(max_rows bigint DEFAULT 50)
RETURNS TABLE (list text, name text, others bigint, requests bigint, today numeric, this_month numeric,
	month_before numeric, estimated numeric, corrected numeric) LANGUAGE sql STABLE AS $$
	WITH d AS (SELECT date_trunc('day', now(), 'UTC') AS today, date_trunc('month', now(), 'UTC') AS month,
		date_trunc('month', now() AT TIME ZONE 'UTC') - interval '1 month' AS before
	), s AS MATERIALIZED (
		SELECT t.user_id, t.own, t.ancestors = '{}' AS top, t.model,
			sum(t.requests) FILTER (WHERE n.recent) AS n,
			sum(m.m) FILTER (WHERE t.settled = (d.today AT TIME ZONE 'UTC')::date) AS a,
			sum(m.m) FILTER (WHERE n.recent) AS b, sum(m.m) FILTER (WHERE NOT n.recent) AS c,
			sum(t.estimated_money) FILTER (WHERE n.recent) AS e,
			sum(m.m) FILTER (WHERE n.recent AND t.kind = 'correction') AS f
		FROM d, rate_limit_totals_of(NULL, d.before AT TIME ZONE 'UTC', d.today + interval '24 h',
				each => true) t,
			LATERAL (SELECT t.settled >= (d.month AT TIME ZONE 'UTC')::date AS recent) n,
			LATERAL (SELECT rate_limit_money(t.money, t.remainder) AS m) m
		GROUP BY 1, 2, 3, 4
	), l AS (
		SELECT 'all' AS list, NULL AS name, n, a, b, c, e, f FROM s WHERE own
		UNION ALL
		SELECT x.list, s.user_id, n, a, b, c, e, f FROM s JOIN (SELECT user_id,
				CASE WHEN bool_or(top) THEN 'organization' ELSE 'team' END AS list
			FROM s GROUP BY 1 HAVING NOT bool_and(own)) x USING (user_id)
		UNION ALL SELECT 'person', user_id, n, a, b, c, e, f FROM s WHERE own
		UNION ALL SELECT 'model', model, n, a, b, c, e, f FROM s WHERE own
	), g AS (
		SELECT list, name, sum(n) AS n, sum(a) AS a, sum(b) AS b, sum(c) AS c, sum(e) AS e, sum(f) AS f,
			row_number() OVER (PARTITION BY list ORDER BY sum(b) DESC NULLS LAST, sum(c) DESC NULLS LAST,
				name) AS place
		FROM l GROUP BY 1, 2
	), r AS (
		SELECT list, CASE WHEN place <= $1 THEN place END AS place, min(name) AS name, count(*) AS rows,
			sum(n)::bigint AS n, sum(a) AS a, sum(b) AS b, sum(c) AS c, sum(e) AS e, sum(f) AS f
			FROM g GROUP BY 1, 2
	)
	SELECT list, CASE WHEN place IS NOT NULL THEN CASE WHEN list IN ('all', 'model') THEN r.name
			ELSE rate_limit_user_of(r.name) END END, CASE WHEN place IS NULL THEN rows END, n,
		a, b, c, rate_limit_money(e), f
	FROM r ORDER BY list, place
$$;
COMMENT ON FUNCTION rate_limit_spent IS
	'What was spent today, in this month and in the month before, in UTC, in lists: all, organization (who '
	'is above others and below nobody), team (who is between), person (who has sent requests; name NULL: '
	'unknown) and model (NULL: none named). A list has the max_rows names with the most money of this month, '
	'and then one row of all others; others is their number. requests, estimated, and corrected, which '
	'has what corrections changed, are of this month. money NULL: nothing had a price.';

CREATE OR REPLACE FUNCTION rate_limit_corrections(max_rows bigint DEFAULT 50)
RETURNS TABLE (at timestamptz, corrected_by text, reason text, model text, month timestamptz, requests bigint,
	money numeric, total bigint) LANGUAGE plpgsql STABLE SET jit = off AS $$
BEGIN
	RETURN QUERY EXECUTE format('SELECT max(l.time), l.corrected_by, l.reason, l.model,
			date_trunc(''month'', l.corrects_time, ''UTC''), count(DISTINCT l.corrects),
			round((sum(l.money) + coalesce(sum(l.remainder), 0) * 0.001) * 0.000001, 9), count(*) OVER ()
		FROM (%s) l WHERE l.money <> 0 OR l.remainder <> 0
		GROUP BY l.day, 2, 3, 4, 5 ORDER BY 1 DESC, 2, 3, 4, 5 LIMIT $1',
		rate_limit_ledger_source(datemultirange(daterange((date_trunc('month', now() AT TIME ZONE 'UTC')
			- interval '1 month')::date, 'infinity')), 'AND corrects IS NOT NULL')) USING $1;
END $$;
COMMENT ON FUNCTION rate_limit_corrections IS
	'The corrections of this month and the one before, in UTC, the latest first: the time of the last one, '
	'who has made them and why, the model and the month of the corrected requests, and how much more these '
	'cost. Corrections of one day are together, and total is the number of all rows.';
