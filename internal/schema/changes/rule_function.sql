-- rate_limit_rule creates or changes a rule and its limits in one call. An argument that is NULL keeps the
-- value of an existing rule. If NULL removed the value, a call that leaves out a condition would make the
-- rule match more requests. reset names arguments to set to their defaults, and limits to delete.
--
-- Constraints and triggers check most values. This function checks what they do not: unknown names in tiers,
-- amounts out of range, and arguments such as burst that apply to none of the rule's limits.

-- Creates or changes a rule with its limits. limits are limits with any window, as in short=50/10s or
-- tpm=5000 tokens/1m, or short= to delete one. reset also deletes limits by their names. Returns created or
-- changed.
CREATE OR REPLACE FUNCTION rate_limit_rule(
	name text,
	family text DEFAULT NULL, priority bigint DEFAULT NULL, mode text DEFAULT NULL, action text DEFAULT NULL,
	tiers text[] DEFAULT NULL, hosts text[] DEFAULT NULL, paths text[] DEFAULT NULL,
		methods text[] DEFAULT NULL, networks cidr[] DEFAULT NULL,
	count_by text[] DEFAULT NULL, algorithm text DEFAULT NULL,
	per_second bigint DEFAULT NULL, per_minute bigint DEFAULT NULL, per_hour bigint DEFAULT NULL,
		per_day bigint DEFAULT NULL, per_month bigint DEFAULT NULL,
	burst bigint DEFAULT NULL, durable boolean DEFAULT NULL, on_exceed text DEFAULT NULL,
	valid tstzrange DEFAULT NULL, cost bigint DEFAULT NULL, status int DEFAULT NULL,
		message text DEFAULT NULL, retry_after interval DEFAULT NULL,
	comment text DEFAULT NULL,
	without_header text DEFAULT NULL, settle text DEFAULT NULL, in_flight bigint DEFAULT NULL,
	limits text[] DEFAULT NULL, reset text[] DEFAULT NULL, notify bigint[] DEFAULT NULL
) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	windows CONSTANT jsonb := '{"per_second": "1s", "per_minute": "1m", "per_hour": "1h", "per_day": "24h",
		"per_month": "1mo calendar", "in_flight": "in_flight"}';
	amounts CONSTANT jsonb := (SELECT jsonb_strip_nulls(to_jsonb(a))
		FROM (SELECT per_second, per_minute, per_hour, per_day, per_month, in_flight) AS a);
	resets CONSTANT text[] := coalesce(reset, '{}');
	limit_names CONSTANT text[] := ARRAY(SELECT jsonb_object_keys(windows))
		|| '{burst,durable,on_exceed,notify}';
	result text;
BEGIN
	PERFORM rate_limit_refuse('tiers: ' || string_agg(quote_literal(t), ', ') || ': must be in '
			'rate_limit_tiers, which has ' || (SELECT coalesce(string_agg(quote_literal(k.tier), ', '
				ORDER BY k.rank, k.tier), 'none') FROM rate_limit_tiers k))
		FROM unnest(tiers) AS t WHERE t NOT IN (SELECT k.tier FROM rate_limit_tiers k);
	PERFORM rate_limit_refuse(string_agg(a.key || ': ' || a.value, ', ')
			|| ': must be null or 0 to 9007199254740992')
		FROM jsonb_each_text(amounts) AS a WHERE a.value::bigint NOT BETWEEN 0 AND 9007199254740992;
	result := rate_limit_set('rate_limit_rules', '{name}', (SELECT jsonb_object_agg(f, NULL)
		FROM unnest(limit_names) AS f) || (SELECT to_jsonb(r) FROM (SELECT name, family, priority, mode,
			action, tiers, hosts, paths, methods, networks, count_by, valid, cost, status, message,
			retry_after, comment, without_header, settle) AS r),
		ARRAY(SELECT n FROM unnest(resets) AS n WHERE n <> ALL (limit_names) OR n IS NULL));
	-- Each element of limits creates or changes a limit, or deletes the limit if the element ends in =. An
	-- amount such as per_day creates the limit of that name if the rule does not have it.
	PERFORM CASE WHEN f.l ~ '^[^=]+=$' THEN rate_limit_delete_limit(name, rtrim(f.l, '='))::text
		ELSE rate_limit_limit(name, split_part(f.l, '=', 1), coalesce(substring(f.l FROM '=(.*)$'), ''),
			algorithm, CASE WHEN f.l !~ '=.*(calendar|in_flight)' THEN burst END, durable,
			CASE WHEN f.l !~ '=.*in_flight' THEN on_exceed END) END
		FROM (SELECT unnest(limits) UNION ALL
			SELECT concat(a.key, '=', a.value, '/', windows ->> a.key) FROM jsonb_each_text(amounts) AS a
			WHERE a.key NOT IN (SELECT l.name FROM rate_limit_rule_limits l WHERE l.rule = name)) AS f(l);
	-- Then set durable on all limits, algorithm and burst on limits with a window (neither a calendar nor
	-- in_flight), on_exceed on all limits except in_flight, and notify on those with a fixed window.
	PERFORM rate_limit_set('rate_limit_rule_limits', '{rule,name}', jsonb_build_object('rule', name, 'name',
			l.name, 'events', rate_limit_units(amounts ->> l.name, l.unit), 'durable', durable,
			'algorithm', CASE WHEN l.per IS NOT NULL THEN algorithm END,
			'burst', CASE WHEN l.per IS NOT NULL THEN burst END,
			'on_exceed', CASE WHEN l.algorithm <> 'in_flight' THEN on_exceed END,
			'notify', CASE WHEN coalesce(algorithm, l.algorithm) = 'fixed_window' THEN notify END),
			ARRAY(SELECT n FROM unnest(resets) AS n WHERE n IN ('burst', 'durable', 'on_exceed', 'notify')))
		FROM rate_limit_rule_limits l WHERE l.rule = name AND (amounts ? l.name
			OR resets && '{burst,durable,on_exceed,notify}'
			OR num_nonnulls(algorithm, burst, durable, on_exceed, notify) > 0);
	DELETE FROM rate_limit_rule_limits l WHERE l.rule = name AND l.name = ANY (resets) AND windows ? l.name
		AND NOT amounts ? l.name;
	PERFORM rate_limit_complete(name); -- now, and not at the end of the transaction
	PERFORM rate_limit_refuse(format('%s: %s: the rule has no limit%s', g.field, g.value, g.place))
		FROM (VALUES ('algorithm', to_json(algorithm), ' with a window'),
			('burst', to_json(burst), ' with a window'),
			('on_exceed', to_json(on_exceed), ' with a window or a calendar'),
			('notify', to_json(notify), ' with a fixed window or a calendar'),
			('durable', CASE WHEN durable THEN to_json(durable) END, '')) AS g(field, value, place)
		WHERE NOT EXISTS (SELECT FROM rate_limit_rule_limits l
			WHERE l.rule = name AND to_jsonb(l) -> g.field = g.value::jsonb) AND g.value IS NOT NULL;
	RETURN result;
END $$;
