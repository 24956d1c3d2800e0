-- What was spent, for people who look at it. It is from the totals, and from the rows of days without totals.

-- A day of the totals is whole, so the day in which a period turns is split by its rows: what came after the
-- turn is added to the days after it. A row is of the periods that turn from lo to hi. The totals, which may
-- be millions, are read twice, for names and for models, with as few groups and columns as possible. In p,
-- usual are the periods of users without periods of their own.
CREATE OR REPLACE FUNCTION rate_limit_spent(max_rows bigint DEFAULT 50)
RETURNS TABLE (list text, name text, others bigint, requests bigint, today numeric, this_month numeric,
	month_before numeric, estimated numeric, corrected numeric)
	LANGUAGE sql STABLE SET jit = off SET work_mem = '64MB' AS $$
	WITH b AS MATERIALIZED (
		SELECT * FROM rate_limit_billing(NULL)
	), p AS MATERIALIZED (
		SELECT b.*, today.starts AS today, this.starts AS this, before.starts AS before
		FROM (SELECT bool_or(counted = '') IS TRUE AS usual, unit, zone, day
				FROM (SELECT * FROM b UNION ALL VALUES (NULL, 'month', 'UTC', 1)) b GROUP BY 2, 3, 4) b,
			rate_limit_calendar_periods('day', b.zone, 1, now(), now()) today,
			rate_limit_calendar_periods(b.unit, b.zone, b.day, now(), now()) this,
			LATERAL (SELECT this.starts - interval '1 us' AS e) e,
			rate_limit_calendar_periods(b.unit, b.zone, b.day, e.e, e.e) before
	), o AS MATERIALIZED (
		SELECT b.counted, p.* FROM b JOIN p USING (unit, zone, day) WHERE NOT p.usual
	), w AS MATERIALIZED (
		SELECT date_trunc('day', min(before), 'UTC') AS lo,
			date_trunc('day', now(), 'UTC') + interval '24 h' AS hi FROM p
	), r AS MATERIALIZED (
		SELECT t.*, NULL::timestamptz AS x FROM w, rate_limit_open_totals(NULL, w.lo, w.hi, each => true) t
		UNION ALL
		SELECT t.*, x.x FROM (SELECT DISTINCT x FROM p, unnest(ARRAY[p.today, p.this, p.before]) x
				WHERE x <> date_trunc('day', x, 'UTC')) x,
			rate_limit_open_totals(NULL, x.x, date_trunc('day', x.x, 'UTC') + interval '24 h', each => true) t
	), s AS NOT MATERIALIZED (
		SELECT t.user_id, t.own, NOT t.own AND t.ancestors = '{}' AS top, t.model, t.requests, t.money,
			t.remainder, t.estimated_money, t.kind = 'correction' AS corrects,
			coalesce(t.x, '-infinity') AS lo, coalesce(t.x, t.settled::timestamp AT TIME ZONE 'UTC') AS hi
		FROM (SELECT t.*, NULL::timestamptz AS x FROM rate_limit_totals t
			WHERE t.n > 0 AND t.day = ANY (ARRAY(
				SELECT l.day FROM w, rate_limit_ledger_parts() l
				WHERE l.summed AND rate_limit_ledger_window(w.lo, w.hi) @> l.day))
			UNION ALL SELECT * FROM r) t
	), g AS (
		SELECT l.each, l.name, l.own, l.corrects, i.*, bool_or(l.top) AS top, sum(requests) AS n,
			sum(money) AS money, sum(remainder) AS remainder, sum(estimated_money) AS e
		FROM (
			SELECT true AS each, s.user_id AS name, s.*,
				coalesce(o.today, (SELECT today FROM p WHERE usual)) AS today,
				coalesce(o.this, (SELECT this FROM p WHERE usual)) AS this,
				coalesce(o.before, (SELECT before FROM p WHERE usual)) AS before
			FROM s LEFT JOIN o ON o.counted = s.user_id
			UNION ALL
			SELECT false, s.model, s.*, p.today, p.this, p.before FROM s, p
			WHERE s.own AND (p.unit, p.zone, p.day) = ('month', 'UTC', 1)) l
		CROSS JOIN LATERAL (SELECT l.today BETWEEN l.lo AND l.hi AS today,
			l.this BETWEEN l.lo AND l.hi AS this, l.before BETWEEN l.lo AND l.hi AS before) i
		WHERE i.today OR i.this OR i.before GROUP BY 1, 2, 3, 4, 5, 6, 7
	), j AS (
		SELECT x.list, x.name, sum(n) FILTER (WHERE this) AS n, sum(m) FILTER (WHERE today) AS a,
			sum(m) FILTER (WHERE this) AS b,
			sum(CASE WHEN this THEN -m ELSE m END) FILTER (WHERE this <> before) AS c,
			sum(e) FILTER (WHERE this) AS e, sum(m) FILTER (WHERE this AND corrects) AS f
		FROM (SELECT g.*, rate_limit_money(money, remainder) AS m, bool_or(top) OVER q AS root,
				bool_and(own) OVER q AS leaf FROM g WINDOW q AS (PARTITION BY each, name)) g
		CROSS JOIN LATERAL (
			SELECT 'all' AS list, NULL AS name WHERE NOT each
			UNION ALL SELECT 'model', g.name WHERE NOT each
			UNION ALL SELECT 'person', g.name WHERE each AND own
			UNION ALL SELECT CASE WHEN root THEN 'organization' ELSE 'team' END, g.name
				WHERE each AND NOT leaf) x
		GROUP BY 1, 2
	), k AS (
		SELECT *, row_number() OVER (PARTITION BY list ORDER BY b DESC NULLS LAST, c DESC NULLS LAST, name)
			AS place FROM j
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
