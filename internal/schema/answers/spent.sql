-- What was spent, for people who look at it. It is from the totals, and from the rows of days without totals.

-- A day of the totals is whole, so the day in which a period turns is split by its rows: what came after the
-- turn is added to the days after it. A row is of the periods that turn from lo to hi.
CREATE OR REPLACE FUNCTION rate_limit_spent(max_rows bigint DEFAULT 50)
RETURNS TABLE (list text, name text, others bigint, requests bigint, today numeric, this_month numeric,
	month_before numeric, estimated numeric, corrected numeric) LANGUAGE sql STABLE AS $$
	WITH s AS MATERIALIZED (
		SELECT t.*, timestamptz '-infinity' AS lo, t.settled::timestamp AT TIME ZONE 'UTC' AS hi
		FROM (SELECT date_trunc('day', now(), 'UTC') AS today) d, rate_limit_totals_of(NULL, d.today
			- CASE WHEN EXISTS (SELECT FROM rate_limit_calendars() c WHERE c.unit = 'year' AND c.place = 1)
				THEN interval '732 days' ELSE '63 days' END, d.today + interval '24 h', each => true) t
	), b AS MATERIALIZED (
		SELECT * FROM rate_limit_billing((SELECT array_agg(DISTINCT s.user_id) FROM s))
	), p AS MATERIALIZED (
		SELECT b.unit, b.zone, b.day, today.starts AS today, this.starts AS this, before.starts AS before
		FROM (SELECT unit, zone, day FROM b UNION VALUES ('month', 'UTC', 1)) b,
			rate_limit_calendar_periods('day', b.zone, 1, now(), now()) today,
			rate_limit_calendar_periods(b.unit, b.zone, b.day, now(), now()) this,
			LATERAL (SELECT this.starts - interval '1 us' AS e) e,
			rate_limit_calendar_periods(b.unit, b.zone, b.day, e.e, e.e) before
	), r AS (
		SELECT * FROM s
		UNION ALL
		SELECT t.*, x.x, x.x FROM (SELECT DISTINCT x FROM p, unnest(ARRAY[p.today, p.this, p.before]) x
				WHERE x <> date_trunc('day', x, 'UTC')) x,
			rate_limit_totals_of(NULL, x.x, date_trunc('day', x.x, 'UTC') + interval '24 h', each => true) t
	), l AS (
		SELECT x.list, x.name, r.requests, rate_limit_money(r.money, r.remainder) AS m,
			r.estimated_money, r.kind, i.today, i.this, i.before
		FROM (SELECT r.*, bool_or(r.ancestors = '{}') OVER u AS top,
				bool_and(r.own) OVER u AS leaf FROM r WINDOW u AS (PARTITION BY r.user_id)) r
		CROSS JOIN LATERAL (
			SELECT 'all' AS list, NULL AS name, false AS each WHERE r.own
			UNION ALL SELECT 'model', r.model, false WHERE r.own
			UNION ALL SELECT 'person', r.user_id, true WHERE r.own
			UNION ALL SELECT CASE WHEN r.top THEN 'organization' ELSE 'team' END, r.user_id, true
				WHERE NOT r.leaf) x
		LEFT JOIN b ON x.each AND b.counted = r.user_id
		JOIN p ON (p.unit, p.zone, p.day) = (coalesce(b.unit, 'month'), coalesce(b.zone, 'UTC'),
			coalesce(b.day, 1))
		CROSS JOIN LATERAL (SELECT p.today BETWEEN r.lo AND r.hi AS today,
			p.this BETWEEN r.lo AND r.hi AS this, p.before BETWEEN r.lo AND r.hi AS before) i
	), g AS (
		SELECT list, name, sum(requests) FILTER (WHERE this) AS n, sum(m) FILTER (WHERE today) AS a,
			sum(m) FILTER (WHERE this) AS b,
			sum(CASE WHEN this THEN -m ELSE m END) FILTER (WHERE this <> before) AS c,
			sum(estimated_money) FILTER (WHERE this) AS e,
			sum(m) FILTER (WHERE this AND kind = 'correction') AS f
		FROM l WHERE today OR this OR before GROUP BY 1, 2
	), k AS (
		SELECT *, row_number() OVER (PARTITION BY list ORDER BY b DESC NULLS LAST, c DESC NULLS LAST, name)
			AS place FROM g
	), f AS (
		SELECT list, CASE WHEN place <= $1 THEN place END AS place, min(name) AS name, count(*) AS rows,
			sum(n)::bigint AS n, sum(a) AS a, sum(b) AS b, sum(c) AS c, sum(e) AS e, sum(f) AS f
			FROM k GROUP BY 1, 2
	)
	SELECT list, CASE WHEN place IS NOT NULL THEN CASE WHEN list IN ('all', 'model') THEN f.name
			ELSE rate_limit_user_of(f.name) END END, CASE WHEN place IS NULL THEN rows END, n,
		a, b, c, rate_limit_money(e), f.f
	FROM f ORDER BY list, place
$$;
COMMENT ON FUNCTION rate_limit_spent IS
	'What was spent today, in the billing period that is running (this_month) and in the one before it, in '
	'lists: all and model (NULL: none named), in days and months in UTC; organization (who '
	'is above others and below nobody), team (who is between) and person (who has sent requests; name NULL: '
	'unknown), each in its own periods. A list has the max_rows names with the most money of this_month, '
	'and then one row of all others; others is their number. requests, estimated, and corrected, which '
	'has what corrections changed, are of this_month. money NULL: nothing had a price.';

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
