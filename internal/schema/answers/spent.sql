-- What was spent, for people who look at it. It is from the totals, and from the rows of days without totals.

-- What was spent today, in the billing period that is running (this_month) and in the one before it, in
-- lists: all and model (NULL: none named), in days and months in UTC; organization (who is above others and
-- below nobody), team (who is between) and person (who has sent requests; name NULL: unknown), each in its
-- own periods. A list has the max_rows names with the most money of this_month, and then one row of all
-- others; others is their number. requests, estimated, and corrected, which has what corrections changed, are
-- of this_month. money NULL: nothing had a price.
--
-- A day of the totals is whole, so the day in which a period turns is split by its rows: what came after the
-- turn is added to the days after it. A row is of the periods that turn from lo to hi. The totals, which may
-- be millions, are read twice, for names and, summed by day first, for models. With OFFSET, Postgres
-- compares it with the periods once. In periods, usual are the periods of users without periods of their own.
CREATE OR REPLACE FUNCTION rate_limit_spent(max_rows bigint DEFAULT 50)
RETURNS TABLE (list text, name text, others bigint, requests bigint, today numeric, this_month numeric,
	month_before numeric, estimated numeric, corrected numeric)
	LANGUAGE sql STABLE SET jit = off SET work_mem = '64MB' AS $$
	WITH billing AS MATERIALIZED (
		SELECT * FROM rate_limit_billing(NULL)
	), periods AS MATERIALIZED (
		SELECT b.*, today.starts AS today, this.starts AS this, before.starts AS before
		FROM (SELECT bool_or(counted = '') IS TRUE AS usual, unit, zone, day
				FROM (SELECT * FROM billing UNION ALL VALUES (NULL, 'month', 'UTC', 1)) b GROUP BY 2, 3, 4) b,
			rate_limit_calendar_periods('day', b.zone, 1, now(), now()) today,
			rate_limit_calendar_periods(b.unit, b.zone, b.day, now(), now()) this,
			LATERAL (SELECT this.starts - interval '1 us' AS ends) e,
			rate_limit_calendar_periods(b.unit, b.zone, b.day, e.ends, e.ends) before
	), own_periods AS MATERIALIZED (
		SELECT b.counted, p.* FROM billing b JOIN periods p USING (unit, zone, day) WHERE NOT p.usual
	), span AS MATERIALIZED (
		SELECT date_trunc('day', min(before), 'UTC') AS lo,
			date_trunc('day', now(), 'UTC') + interval '24 h' AS hi FROM periods
	), unsummed AS MATERIALIZED (
		SELECT t.*, NULL::timestamptz AS turn
			FROM span s, rate_limit_totals_of(NULL, s.lo, s.hi, each => true) t
		UNION ALL
		SELECT t.*, x.turn FROM (SELECT DISTINCT turn FROM periods p,
				unnest(ARRAY[p.today, p.this, p.before]) turn
				WHERE turn <> date_trunc('day', turn, 'UTC')) x,
			rate_limit_totals_of(NULL, x.turn, date_trunc('day', x.turn, 'UTC') + interval '24 h',
				each => true) t
	), spent AS NOT MATERIALIZED (
		SELECT t.user_id, t.own, NOT t.own AND t.ancestors = '{}' AS top, t.model, t.requests,
			CASE WHEN t.remainder IS NULL THEN t.money ELSE t.money + t.remainder * 0.001 END AS money,
			t.estimated_money AS estimated, t.kind = 'correction' AS corrects,
			coalesce(t.turn, '-infinity') AS lo,
			coalesce(t.turn, to_timestamp((t.settled - date 'epoch') * float8 '86400')) AS hi
		FROM (SELECT t.*, NULL::timestamptz AS turn FROM rate_limit_totals t
			WHERE t.n > 0 AND t.day = ANY (ARRAY(
				SELECT l.day FROM span s, rate_limit_ledger_parts() l
				WHERE l.summed AND rate_limit_ledger_window(s.lo, s.hi) @> l.day))
			UNION ALL SELECT * FROM unsummed) t
	), sums AS MATERIALIZED (
		SELECT each, name, own, bool_or(top) AS top, sum(requests) FILTER (WHERE this) AS requests,
			sum(money) FILTER (WHERE today) AS of_today, sum(money) FILTER (WHERE this) AS of_this,
			sum(CASE WHEN this THEN -money ELSE money END) FILTER (WHERE this <> before) AS of_before,
			sum(estimated) FILTER (WHERE this) AS estimated,
			sum(money) FILTER (WHERE this AND corrects) AS corrected
		FROM (
			SELECT l.each, l.name, l.own, l.top, l.requests, l.money, l.estimated, l.corrects,
				l.today BETWEEN l.lo AND l.hi AS today, l.this BETWEEN l.lo AND l.hi AS this,
				l.before BETWEEN l.lo AND l.hi AS before
			FROM (
				SELECT true AS each, s.user_id AS name, s.*,
					coalesce(o.today, (SELECT today FROM periods WHERE usual)) AS today,
					coalesce(o.this, (SELECT this FROM periods WHERE usual)) AS this,
					coalesce(o.before, (SELECT before FROM periods WHERE usual)) AS before
				FROM spent s LEFT JOIN own_periods o ON o.counted = s.user_id
				UNION ALL
				SELECT false, m.model, NULL, true, false, m.*, p.today, p.this, p.before
				FROM (SELECT model, sum(requests)::bigint, sum(money), sum(estimated), corrects, lo, hi
					FROM spent WHERE own GROUP BY model, corrects, lo, hi) m, periods p
				WHERE (p.unit, p.zone, p.day) = ('month', 'UTC', 1)) l OFFSET 0) l
		WHERE today OR this OR before GROUP BY 1, 2, 3
	), above AS (
		SELECT name, bool_or(top) AS root FROM sums WHERE NOT own GROUP BY 1
	), listed AS MATERIALIZED (
		SELECT CASE WHEN each THEN 'person' ELSE 'model' END AS list, name, requests, of_today, of_this,
			of_before, estimated, corrected, row_number() OVER () AS id FROM sums WHERE own
		UNION ALL
		SELECT CASE WHEN NOT each THEN 'all' WHEN root THEN 'organization' ELSE 'team' END,
			CASE WHEN each THEN name END, sum(requests), sum(of_today), sum(of_this), sum(of_before),
			sum(estimated), sum(corrected), -row_number() OVER ()
		FROM sums LEFT JOIN above USING (name) WHERE NOT each OR root IS NOT NULL GROUP BY 1, 2
	), shown AS MATERIALIZED (
		SELECT s.* FROM unnest('{all,model,organization,team,person}'::text[]) l, LATERAL (
			SELECT * FROM listed WHERE listed.list = l
			ORDER BY of_this DESC NULLS LAST, of_before DESC NULLS LAST, name LIMIT $1) s
	)
	SELECT list, CASE WHEN list IN ('all', 'model') THEN name
			ELSE coalesce(u.user_id, nullif(name, '')) END, others, f.requests::bigint,
		rate_limit_money(of_today), rate_limit_money(of_this), rate_limit_money(of_before),
		rate_limit_money(f.estimated), rate_limit_money(f.corrected)
	FROM (SELECT shown.*, NULL::bigint AS others FROM shown UNION ALL
		SELECT list, NULL, sum(requests), sum(of_today), sum(of_this), sum(of_before), sum(estimated),
			sum(corrected), NULL, count(*) FROM listed
		WHERE id NOT IN (SELECT id FROM shown) GROUP BY 1) f
		LEFT JOIN rate_limit_renamed() u ON u.counted = name
	ORDER BY list, others NULLS FIRST, of_this DESC NULLS LAST, of_before DESC NULLS LAST, f.name
$$;

-- The corrections of this month and the one before, in UTC, the latest first: the time of the last one, who
-- has made them and why, the model and the month of the corrected requests, and how much more these cost.
-- Corrections of one day are together, and total is the number of all rows.
CREATE OR REPLACE FUNCTION rate_limit_corrections(max_rows bigint DEFAULT 50)
RETURNS TABLE (at timestamptz, corrected_by text, reason text, model text, month timestamptz, requests bigint,
	money numeric, total bigint) LANGUAGE plpgsql STABLE SET jit = off AS $$
BEGIN
	RETURN QUERY EXECUTE format('SELECT max(l.time), l.corrected_by, l.reason, l.model,
			date_trunc(''month'', l.corrects_time, ''UTC''), count(DISTINCT l.corrects),
			rate_limit_money(sum(l.money), sum(l.remainder)), count(*) OVER ()
		FROM (%s) l WHERE l.money <> 0 OR l.remainder <> 0
		GROUP BY l.day, 2, 3, 4, 5 ORDER BY 1 DESC, 2, 3, 4, 5 LIMIT $1',
		rate_limit_ledger_source(datemultirange(daterange((date_trunc('month', now() AT TIME ZONE 'UTC')
			- interval '1 month')::date, 'infinity')), 'AND corrects IS NOT NULL')) USING $1;
END $$;
