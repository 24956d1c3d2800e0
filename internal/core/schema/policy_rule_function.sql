-- rate_limit_rule makes or changes a rule and its limits in one call. NULL keeps what an existing rule
-- has, since a rule that loses a condition that was not named would match too much. reset names what
-- goes back to its default; a limit that it names is deleted.
--
-- The constraints and triggers check all values but the names in tiers that no tier has.

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
	limits text[] DEFAULT NULL, reset text[] DEFAULT NULL
) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	of_limits CONSTANT text[] := '{per_second,per_minute,per_hour,per_day,per_month,in_flight,burst,durable,'
		'on_exceed}';
	made text;
	unknown text; -- first the tiers that are not there, then what is wrong with the limits
	kept text;
	fault text; -- the constraint that is violated
	row_text text;
BEGIN
	SELECT string_agg(quote_literal(t), ', ') INTO unknown FROM unnest(rate_limit_rule.tiers) AS t
		WHERE NOT EXISTS (SELECT FROM rate_limit_tiers k WHERE k.tier = t);
	IF unknown IS NOT NULL THEN
		RAISE EXCEPTION 'tiers: %: must be in rate_limit_tiers, which has %', unknown,
			(SELECT coalesce(string_agg(quote_literal(tier), ', ' ORDER BY rank, tier), 'none')
				FROM rate_limit_tiers) USING ERRCODE = 'foreign_key_violation';
	END IF;
	made := rate_limit_set('rate_limit_rules', '{name}', (SELECT jsonb_object_agg(f, NULL)
		FROM unnest(of_limits) AS f)
		|| jsonb_build_object('name', rate_limit_rule.name, 'family', rate_limit_rule.family, 'priority',
			rate_limit_rule.priority,
		'mode', rate_limit_rule.mode, 'action', rate_limit_rule.action, 'tiers', rate_limit_rule.tiers,
		'hosts', rate_limit_rule.hosts,
		'paths', rate_limit_rule.paths, 'methods', rate_limit_rule.methods, 'networks',
		rate_limit_rule.networks,
		'count_by', rate_limit_rule.count_by, 'valid', rate_limit_rule.valid, 'cost', rate_limit_rule.cost,
		'status', rate_limit_rule.status,
		'message', rate_limit_rule.message, 'retry_after', rate_limit_rule.retry_after, 'comment',
		rate_limit_rule.comment,
		'without_header', rate_limit_rule.without_header, 'settle', rate_limit_rule.settle),
		ARRAY(SELECT n FROM unnest(rate_limit_rule.reset) AS n WHERE n <> ALL (of_limits) OR n IS NULL));
	-- A limit that is new beside others is of their algorithm, unless it is said.
	SELECT min(l.algorithm) INTO kept FROM rate_limit_rule_limits l WHERE l.rule = rate_limit_rule.name
		AND l.per IS NOT NULL HAVING count(DISTINCT l.algorithm) = 1;
	DELETE FROM rate_limit_rule_limits l WHERE l.rule = rate_limit_rule.name
		AND l.name = ANY (rate_limit_rule.reset)
		AND l.name = ANY (of_limits);
	UPDATE rate_limit_rule_limits l SET burst = CASE WHEN 'burst' = ANY (rate_limit_rule.reset) THEN NULL
		ELSE l.burst END,
		durable = l.durable AND 'durable' <> ALL (rate_limit_rule.reset),
		on_exceed = CASE WHEN 'on_exceed' = ANY (rate_limit_rule.reset) THEN 'refuse' ELSE l.on_exceed END
	WHERE l.rule = rate_limit_rule.name AND rate_limit_rule.reset && '{burst,durable,on_exceed}';
	-- A limit of the list is new or other than before, or, without an amount, deleted.
	PERFORM CASE WHEN l ~ '^[^=]+=$' THEN rate_limit_delete_limit(rate_limit_rule.name, rtrim(l, '='))::text
		ELSE rate_limit_limit(rate_limit_rule.name, split_part(l, '=', 1),
			coalesce(substring(l FROM '=(.*)$'), '')) END
	FROM unnest(rate_limit_rule.limits) AS l;
	-- The limits that exist take what is said of all of them. A month stays a fixed window, and
	-- in_flight what it is.
	UPDATE rate_limit_rule_limits l SET
		algorithm = CASE WHEN l.per IS NOT NULL THEN coalesce(rate_limit_rule.algorithm, l.algorithm)
			ELSE l.algorithm END,
		burst = CASE WHEN l.per IS NOT NULL THEN coalesce(rate_limit_rule.burst, l.burst) ELSE l.burst END,
		durable = coalesce(rate_limit_rule.durable, l.durable), on_exceed = CASE
			WHEN l.algorithm = 'in_flight' THEN l.on_exceed
			ELSE coalesce(rate_limit_rule.on_exceed, l.on_exceed) END
	WHERE l.rule = rate_limit_rule.name AND num_nonnulls(rate_limit_rule.algorithm, rate_limit_rule.burst,
		rate_limit_rule.durable, rate_limit_rule.on_exceed) > 0;
	INSERT INTO rate_limit_rule_limits AS l (rule, name, algorithm, events, per, calendar, burst, durable,
		on_exceed)
		SELECT rate_limit_rule.name, new.name, CASE WHEN new.per IS NOT NULL
			THEN coalesce(rate_limit_rule.algorithm, kept, 'sliding_window') WHEN new.calendar IS NULL
			THEN 'in_flight' ELSE 'fixed_window' END,
			new.events, new.per, new.calendar, CASE WHEN new.per IS NOT NULL THEN rate_limit_rule.burst END,
			coalesce(rate_limit_rule.durable, false), CASE WHEN new.name = 'in_flight' THEN 'refuse'
				ELSE coalesce(rate_limit_rule.on_exceed, 'refuse') END
		FROM (VALUES ('per_second', rate_limit_rule.per_second, interval '1 s', NULL),
			('per_minute', rate_limit_rule.per_minute, '1 min', NULL),
			('per_hour', rate_limit_rule.per_hour, '1 h', NULL),
				('per_day', rate_limit_rule.per_day, '24 h', NULL),
			('per_month', rate_limit_rule.per_month, NULL, 'month'), ('in_flight', rate_limit_rule.in_flight,
				NULL, NULL)) AS new(name, events, per, calendar)
		WHERE new.events IS NOT NULL
	ON CONFLICT ON CONSTRAINT rate_limit_rule_limits_pkey DO UPDATE SET events = excluded.events;
	PERFORM rate_limit_complete(rate_limit_rule.name); -- now, and not at the end of the transaction
	-- A value that no limit of the rule takes is refused, whether it is misspelt or has no use.
	SELECT CASE
		WHEN rate_limit_rule.algorithm NOT IN ('sliding_window', 'fixed_window', 'token_bucket',
			'sliding_log', 'gcra', 'in_flight') THEN 'algorithm_must_be_one_that_the_documentation_names'
		WHEN rate_limit_rule.on_exceed NOT IN ('refuse', 'overage') THEN 'on_exceed_must_be_refuse_or_overage'
		WHEN rate_limit_rule.algorithm IS NOT NULL
			AND NOT coalesce(bool_or(l.algorithm = rate_limit_rule.algorithm), false)
			THEN 'algorithm_must_be_that_of_a_limit_with_a_window'
		WHEN rate_limit_rule.burst IS NOT NULL
			AND NOT coalesce(bool_or(l.burst = rate_limit_rule.burst), false)
			THEN 'burst_must_be_of_a_limit_with_a_window'
		WHEN rate_limit_rule.on_exceed IS NOT NULL
			AND NOT coalesce(bool_or(l.on_exceed = rate_limit_rule.on_exceed), false)
			THEN 'on_exceed_must_be_of_a_limit_that_is_not_in_flight'
		WHEN rate_limit_rule.durable AND count(*) = 0 THEN 'durable_must_be_of_a_limit' END
	INTO unknown FROM rate_limit_rule_limits l WHERE l.rule = rate_limit_rule.name;
	IF unknown IS NOT NULL THEN
		RAISE EXCEPTION 'the rule % violates "%"', quote_literal(rate_limit_rule.name), unknown
			USING ERRCODE = 'check_violation', CONSTRAINT = unknown;
	END IF;
	RETURN made;
EXCEPTION WHEN check_violation THEN
	-- The error names the argument first, and has no statement of this function. Events are those of an
	-- argument per_....
	GET STACKED DIAGNOSTICS fault = CONSTRAINT_NAME, kept = MESSAGE_TEXT, row_text = PG_EXCEPTION_DETAIL;
	IF fault !~ '_(must|needs)_' THEN
		RAISE;
	END IF;
	IF fault LIKE 'events\_must%' THEN
		SELECT string_agg(a.name || ': ' || a.events, ', ') INTO unknown
			FROM (VALUES ('per_second', rate_limit_rule.per_second),
			('per_minute', rate_limit_rule.per_minute),
			('per_hour', rate_limit_rule.per_hour), ('per_day', rate_limit_rule.per_day),
				('per_month', rate_limit_rule.per_month),
			('in_flight', rate_limit_rule.in_flight)) AS a(name, events) WHERE a.events NOT BETWEEN 0
				AND 9007199254740992;
		kept := concat(unknown, ': must ', replace(split_part(fault, '_must_', 2), '_', ' '));
	ELSIF fault LIKE 'exactly%' THEN
		kept := format('algorithm: %s: must be that of a limit with a window; in_flight is for requests '
			'that run at once', to_json(rate_limit_rule.algorithm));
	ELSE
		kept := rate_limit_fault(fault, replace(fault, '_', ' '), NULL,
			jsonb_build_object('algorithm', rate_limit_rule.algorithm, 'burst', rate_limit_rule.burst,
				'durable', rate_limit_rule.durable, 'on_exceed', rate_limit_rule.on_exceed));
	END IF;
	RAISE EXCEPTION '%', kept USING ERRCODE = 'check_violation', DETAIL = row_text;
END $$;
COMMENT ON FUNCTION rate_limit_rule IS
	'Creates a rule with its limits, or changes one. NULL is the default for a new rule, and keeps what an '
	'existing rule has; reset names arguments that go back to their defaults. limits are limits of any '
	'window, as in burst=50/10s, or x= to delete one. It returns created or changed.';
