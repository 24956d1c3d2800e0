-- Functions and views for the lists of commands. They have the rights of the calling role.

-- The rows of rate_limit_used that count a user, or one of its API keys, and then the rows that count the
-- users above it, which level names.
CREATE OR REPLACE FUNCTION rate_limit_used_by(user_id text, key_id bigint DEFAULT NULL)
	RETURNS TABLE (rule text, limit_name text, key text, algorithm text, used numeric, held numeric,
	quota numeric, percent numeric, resets_at timestamptz, unit text, level text)
	LANGUAGE plpgsql STABLE ROWS 10 AS $$
DECLARE
	ids text[] := ARRAY[NULL::text]; -- the user and those above it
	keys text[] := ARRAY[coalesce((SELECT k.counted_as FROM rate_limit_api_keys k WHERE k.id = $2)::text,
		$2::text)]; -- the keys of their counters
BEGIN
	IF $2 IS NULL THEN
		SELECT array_agg(l.user_id ORDER BY l.place), array_agg(rate_limit_counter_key(l.counts)
			ORDER BY l.place) INTO ids, keys FROM rate_limit_lineage($1) l;
	END IF;
	RETURN QUERY SELECT u.*, nullif(ids[array_position(keys, d.part)], $1)
		FROM rate_limit_used u JOIN rate_limit_rules r ON r.name = u.rule
		JOIN LATERAL rate_limit_counted(r.count_by, u.key) d
			ON d.dimension = CASE WHEN $2 IS NULL THEN 'user' ELSE 'key' END AND d.part = ANY (keys)
		WHERE u.key = ANY (rate_limit_key_forms(keys))
		ORDER BY array_position(keys, d.part), u.rule, u.limit_name, u.key;
END $$;

-- The recent requests of a user or of one of its API keys: of today, and (this_month) of the user's billing
-- period that is running, by rate_limit_metrics_of. limited, blocked and rejected are refused requests of
-- this_month. resets is the latest resets_at in rate_limit_used_by. No row: no usage was recorded, or the
-- role may not read it.
--
-- The history may be missing, or the role may not read the history. The function is in plpgsql, because
-- Postgres then checks only the statements that run.
CREATE OR REPLACE FUNCTION rate_limit_recent(user_id text, key_id bigint DEFAULT NULL)
	RETURNS TABLE (today bigint, this_month bigint, limited bigint, blocked bigint, rejected bigint,
	last_request timestamptz, resets timestamptz) LANGUAGE plpgsql STABLE ROWS 1 AS $$
BEGIN
	IF rate_limit_may_read('metrics') THEN
		RETURN QUERY SELECT (SELECT coalesce(sum(t.requests), 0)::bigint
				FROM rate_limit_metrics_of(ARRAY[$1], d.starts, 'infinity') t
				WHERE $2 IS NULL OR t.key_id = $2),
			coalesce(sum(n.requests), 0)::bigint,
			coalesce(sum(n.limited), 0)::bigint, coalesce(sum(n.blocked), 0)::bigint,
			coalesce(sum(n.rejected), 0)::bigint,
			(SELECT max(m.last_request) FROM rate_limit_metrics m WHERE m.granularity = 'day'
				AND m.user_id = $1 AND ($2 IS NULL OR m.key_id = $2)),
			(SELECT max(u.resets_at) FROM rate_limit_used_by($1, $2) u)
		FROM rate_limit_billing(ARRAY[rate_limit_counted_user($1)]) b
			CROSS JOIN LATERAL rate_limit_calendar_periods('day', b.zone, 1, now(), now()) d
			CROSS JOIN LATERAL rate_limit_calendar_periods(b.unit, b.zone, b.day, now(), now()) p
			LEFT JOIN LATERAL rate_limit_metrics_of(ARRAY[$1], p.starts, 'infinity') n
				ON $2 IS NULL OR n.key_id = $2
		-- Without any recorded usage, return no row: a row with zeros would mean that there was no request.
		WHERE EXISTS (SELECT FROM rate_limit_metrics m WHERE m.granularity = 'day' AND m.user_id > '')
		GROUP BY d.starts;
	END IF;
END $$;

-- The changes of the policy as text.
--   key_id: The id of the API key that was changed, or that has the changed override or ban. NULL: another
--     change.
--   which: ref for display: all for NULL, and for an API key its id, or the start of its digest if the row is
--     too old to have the id.
--   what: created or deleted, with the rule, limit and amounts of an override; changed; or the columns that
--     differ. An amount of money is a decimal number.
CREATE OR REPLACE VIEW rate_limit_changed WITH (security_invoker) AS
	SELECT c.seq, c.at, c.by, c.kind, c.ref, k.id AS key_id, c.before, c.after,
		CASE WHEN c.ref IS NULL AND num_nonnulls(c.before, c.after) = 0
			THEN '{"more than 1,000 rows, or all"}' WHEN num_nonnulls(c.before, c.after) = 0 THEN '{changed}'
			WHEN num_nonnulls(c.before, c.after) = 1 THEN ARRAY[CASE WHEN c.before IS NULL THEN 'created'
				ELSE 'deleted' END] || ARRAY(
				SELECT format('%s: %s', name, coalesce(m.after, m.before) ->> name)
					FROM unnest('{rule,limit_name,events,burst,valid}'::text[]) AS name
				WHERE c.kind = 'override' AND nullif(coalesce(c.after, c.before) ->> name, '(,)') IS NOT NULL)
			ELSE ARRAY(SELECT format('%s: %s -> %s', a.key, m.before -> a.key, a.value)
				FROM jsonb_each(m.after) a
				WHERE a.value IS DISTINCT FROM m.before -> a.key AND a.key <> 'updated_at'
					ORDER BY a.key COLLATE "C") END AS what,
		CASE WHEN c.ref IS NULL THEN 'all' WHEN k.id IS NOT NULL THEN CASE c.kind WHEN 'key' THEN ''
			ELSE 'key/' END || k.id
			ELSE regexp_replace(c.ref, '(^|/)([0-9a-f]{12})[0-9a-f]{52}$', '\1\2...') END AS which
	FROM rate_limit_changes c,
		LATERAL (SELECT (coalesce(c.after, c.before) ->> CASE c.kind WHEN 'key' THEN 'id'
		ELSE 'key_id' END)::bigint AS id) k,
		LATERAL (SELECT CASE c.kind WHEN 'override' THEN (SELECT l.unit FROM rate_limit_rule_limits l
			WHERE (l.rule, l.name) = (coalesce(c.after, c.before) ->> 'rule',
				coalesce(c.after, c.before) ->> 'limit_name')) END AS unit) u,
		LATERAL (SELECT rate_limit_policy_amount(c.before, coalesce(c.before ->> 'unit', u.unit) = 'money',
			false) AS before, rate_limit_policy_amount(c.after, coalesce(c.after ->> 'unit', u.unit)
			= 'money', false) AS after) m;
