-- Views for operators: bans in force, used quotas, and rules that need attention. They have the rights of the
-- calling role, so that the row-level security of the tables applies.

-- The bans that are in force.
--   kind: network, user or key.
--   banned: The network, the user, or the id of the key.
--   remaining: The time until the ban ends. NULL: never.
CREATE OR REPLACE VIEW rate_limit_banned WITH (security_invoker) AS
	SELECT b.id, CASE WHEN b.network IS NOT NULL THEN 'network' WHEN b.user_id IS NOT NULL THEN 'user'
		ELSE 'key' END AS kind,
		coalesce(b.network::text, b.user_id, b.key_id::text) AS banned, b.until, CASE WHEN isfinite(b.until)
			THEN b.until - now() END AS remaining,
		b.reason, b.banned_at, b.banned_by, b.network, b.user_id, b.key_id
	FROM rate_limit_bans b WHERE b.until > now();

-- Splits a key of one part into the dimension, such as user, and the value. If a rule counts by user|ip, the
-- key 2|192.0.2.1 has the dimension ip. No row for more parts.
CREATE OR REPLACE FUNCTION rate_limit_counted(count_by text[], key text)
	RETURNS TABLE (dimension text, part text) LANGUAGE sql IMMUTABLE PARALLEL SAFE BEGIN ATOMIC
	SELECT CASE WHEN strpos(count_by[1], '|') = 0 THEN count_by[1]
		ELSE split_part(count_by[1], '|', substring(key FROM '^([1-9])[|]')::int) END,
		CASE WHEN strpos(count_by[1], '|') = 0 THEN key ELSE substr(key, 3) END
	WHERE cardinality(count_by) = 1;
END;

-- Postgres inlines this body (see rate_limit_counters) and finds the rows by their indexes. The body is a
-- string and not BEGIN ATOMIC, because a parsed body would depend on the tables, and DROP TABLE would fail.
DO $do$ BEGIN
	EXECUTE replace($sql$

-- The override that now replaces the amount of a limit for a user or an API key. Proxies choose it in the
-- same way. No row: the limit has its own amount.
CREATE OR REPLACE FUNCTION rate_limit_override_of(rule text, limit_name text, user_id text, key_id bigint)
RETURNS TABLE (id bigint, events bigint, burst bigint) LANGUAGE sql STABLE AS $$
	SELECT o.id, o.events, o.burst FROM {schema}.rate_limit_overrides o
	WHERE o.rule = $1 AND o.limit_name = $2 AND o.valid @> now() AND (o.key_id = $4
		OR o.user_id = coalesce($3, (SELECT k.user_id FROM {schema}.rate_limit_api_keys k WHERE k.id = $4))
		OR o.tier = (SELECT coalesce(k.tier, CASE WHEN u.tier_until > now() THEN u.tier END)
			FROM (SELECT) AS s LEFT JOIN {schema}.rate_limit_api_keys k ON k.id = $4
				LEFT JOIN {schema}.rate_limit_users u ON u.user_id = coalesce($3, k.user_id)))
	ORDER BY o.key_id NULLS LAST, o.user_id NULLS LAST, lower(o.valid) DESC NULLS LAST, o.id DESC LIMIT 1
$$;
$sql$, '{schema}', quote_ident(current_schema()));
END $do$;

-- The counters of rules, with the used part of their quota. If a counter is of one user or one API key, an
-- override may replace the amount of the limit.
--   rule: The rule.
--   algorithm: The algorithm of the limit.
--   limit_name: The limit of the rule.
--   key: The key of the counter.
--   used: The used units of the quota now.
--   held: The units that running requests hold, of a limit of tokens or money.
--   quota: The full quota: the burst, or the events. NULL: unlimited.
--   percent: used and held as a percentage of quota, or of 1 if quota is 0.
--   resets_at: As in rate_limit_usage_of.
--   unit: What the limit counts. NULL: requests.
CREATE OR REPLACE VIEW rate_limit_used WITH (security_invoker) AS
	-- The result of a function has the collation of the database, but the index of new tables has "C".
	-- Without COLLATE, a join could not use the index.
	SELECT l.rule, l.name AS limit_name, c.key COLLATE "C" AS key, l.algorithm,
		CASE l.unit WHEN 'money' THEN rate_limit_money(u.used, CASE WHEN u.used > 0 THEN c.remainder END)
			ELSE u.used END AS used,
		rate_limit_decimal(c.held, l.unit) AS held,
		rate_limit_decimal(q.quota, l.unit) AS quota,
		(100::numeric * (u.used::numeric + c.held) / CASE WHEN q.quota > 0 THEN q.quota ELSE 1 + q.quota END)
			::numeric(20, 1) AS percent, u.resets_at,
		nullif(l.unit, 'requests') AS unit
	FROM rate_limit_rule_limits l
	JOIN rate_limit_rules r ON r.name = l.rule
	CROSS JOIN LATERAL rate_limit_counters(rate_limit_prefix(coalesce(r.counted_as, r.name),
		coalesce(l.counted_as, l.name)), coalesce(l.durable, l.unit <> 'requests')) c
	LEFT JOIN LATERAL (
		-- This undoes the escapes in the key of a counter: %20 is a space, %25 a percent sign, and ip%3A at
		-- the start is "ip:".
		SELECT o.* FROM rate_limit_counted(r.count_by, c.key) d
			CROSS JOIN LATERAL (SELECT replace(replace(replace(d.part, '%20', ' '), '%3A', ':'), '%25', '%')
				AS name) n
			CROSS JOIN LATERAL rate_limit_override_of(l.rule, l.name,
			CASE d.dimension WHEN 'user' THEN coalesce((SELECT u.user_id FROM rate_limit_users u
				WHERE coalesce(u.counted_as, u.user_id) = n.name), n.name) END,
			CASE WHEN d.dimension = 'key' AND d.part ~ '^[1-9][0-9]{0,17}$' THEN d.part::bigint END) o
	) o ON true
	CROSS JOIN LATERAL (SELECT CASE WHEN o.id IS NULL THEN l.events ELSE o.events END AS events,
		coalesce(o.burst, l.burst) AS burst) AS a
	CROSS JOIN LATERAL (SELECT CASE WHEN a.events IS NOT NULL THEN coalesce(a.burst, a.events) END AS quota)
		AS q
	CROSS JOIN LATERAL rate_limit_usage_of(l.algorithm, a.events, a.burst,
		(date_part('epoch', l.per) * 1000000)::bigint, c.count, c.prev_count, c.window_start, c.tokens,
		c.last_refill, c.remainder, c.hits, c.slots, c.expires_at) AS u;

-- The counters of rules with at least 80 % of their quota used or held. Unlimited counters do not appear.
CREATE OR REPLACE VIEW rate_limit_near WITH (security_invoker) AS
	SELECT u.rule, u.limit_name, u.key, u.algorithm, u.used, u.held, u.quota, u.percent, u.unit
	FROM rate_limit_used u WHERE u.used + u.held > 0 AND u.used + u.held >= 0.8 * u.quota;

-- Rules that proxies cannot use, or that probably do not have the intended effect.
--   field: What the warning is about: a column of the rule, the name of a limit, or proxies.
--   warning: The text of the warning.
CREATE OR REPLACE VIEW rate_limit_rule_warnings WITH (security_invoker) AS
	SELECT r.name AS rule, 'tiers' AS field, 'tiers: ' || string_agg(quote_literal(t), ', ' ORDER BY t) ||
		': not in rate_limit_tiers, so no user has them' AS warning
	FROM rate_limit_rules r CROSS JOIN unnest(r.tiers) AS t WHERE NOT EXISTS (SELECT FROM rate_limit_tiers k
		WHERE k.tier = t) GROUP BY r.name
	UNION ALL
	SELECT l.rule, l.name, l.name ||
		': 0: refuses every request, and no override has another amount: to '
		'refuse all requests, use action=block'
	FROM rate_limit_rule_limits l JOIN rate_limit_rules r ON r.name = l.rule
	WHERE l.events = 0 AND l.on_exceed = 'refuse' AND r.mode <> 'off'
		AND NOT EXISTS (SELECT FROM rate_limit_overrides o WHERE o.rule = l.rule AND o.limit_name = l.name
			AND o.valid @> now() AND o.events IS DISTINCT FROM 0)
		-- The last rule of a family refuses all for which no other rule of the family applies.
		AND NOT EXISTS (SELECT FROM rate_limit_rules o WHERE o.family = r.family AND o.priority > r.priority
			AND o.mode <> 'off')
	UNION ALL
	SELECT m[1], 'proxies', format('%s cannot use it: %s', p.node, m[2])
	FROM rate_limit_proxies p, unnest(p.problems) AS problem,
		regexp_match(problem, '^rule ([^:,]+)[:,] (.*)$') AS m WHERE p.live AND m IS NOT NULL;

-- The counters of a limit, among some keys, that have reached one of the percentages of its notify.
--
-- The counters of limits with notify that have reached one of the percentages, for rate_limit_notice.
CREATE OR REPLACE FUNCTION rate_limit_noticed(rule text, limit_name text, keys text[])
RETURNS TABLE (prefix text, key text, durable boolean, unit text, quota bigint, percents bigint[])
	LANGUAGE sql STABLE AS $$
	SELECT rate_limit_prefix(coalesce(r.counted_as, r.name), coalesce(l.counted_as, l.name)), u.key,
		coalesce(l.durable, l.unit <> 'requests'), l.unit,
		(u.quota * CASE l.unit WHEN 'money' THEN 1000000 ELSE 1 END)::bigint, l.notify
	FROM rate_limit_rule_limits l JOIN rate_limit_rules r ON r.name = l.rule AND r.mode <> 'off'
		JOIN rate_limit_used u ON (u.rule, u.limit_name) = (l.rule, l.name)
	WHERE l.notify IS NOT NULL AND l.rule = $1 AND l.name = $2 AND u.key = ANY ($3) AND u.quota > 0
		AND u.used * 100 >= u.quota * (SELECT min(p) FROM unnest(l.notify) p)
$$;
