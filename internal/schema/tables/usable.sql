-- Triggers that compare a rule with its limits. Several commands write a rule and its limits, so the triggers
-- wait for the end of the transaction. A rule that is off may be incomplete.

-- Checks a rule that is not off. It fails if a rule with the action limit has no limit, if another rule has
-- one, or if a rule with settle has a limit of tokens or money, or only limits of requests in flight.
CREATE OR REPLACE FUNCTION rate_limit_complete(rule text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	r record;
	fault text;
BEGIN
	-- If two transactions each delete a limit, the second one waits here, and sees the change of the first.
	SELECT action, settle INTO r FROM rate_limit_rules WHERE name = $1 AND mode <> 'off' FOR NO KEY UPDATE;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	-- A snapshot of REPEATABLE READ may have limits that the first transaction deleted. To lock them fails.
	PERFORM FROM rate_limit_rule_limits l WHERE l.rule = $1
		AND current_setting('transaction_isolation') <> 'read committed' FOR KEY SHARE;
	SELECT CASE WHEN r.action = 'limit' AND count(*) = 0
			THEN 'limits: missing: a rule with the action limit must have one, such as per_hour'
		WHEN r.action <> 'limit' AND count(*) > 0
			THEN format('action: %L: must be limit, because the rule has limits: delete these limits, or '
				'make another rule', r.action)
		WHEN r.settle IS NOT NULL AND count(*) FILTER (WHERE l.algorithm <> 'in_flight') = 0
			THEN format('settle: %s: must be left out with in_flight: a slot ends with its request',
				to_json(r.settle))
		WHEN r.settle IS NOT NULL AND count(*) FILTER (WHERE l.unit <> 'requests') > 0
			THEN format('settle: %s: must be left out with unit %s: the response reports the cost',
				to_json(r.settle), min(l.unit) FILTER (WHERE l.unit <> 'requests')) END
		INTO fault FROM rate_limit_rule_limits l WHERE l.rule = $1;
	IF fault IS NOT NULL THEN
		RAISE check_violation USING MESSAGE = fault, DETAIL = format('The rule is %L.', $1);
	END IF;
END $$;

-- Refuses rules with an action that does not suit their limits, at the end of the transaction.
CREATE OR REPLACE FUNCTION rate_limit_check_complete() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	-- A limit has the columns rule and name, and a rule name alone. OLD or NEW may be NULL.
	PERFORM rate_limit_complete(coalesce(r ->> 'rule', r ->> 'name'))
		FROM unnest(ARRAY[to_jsonb(OLD), to_jsonb(NEW)]) r;
	RETURN NULL;
END $$;
DO $$
DECLARE
	checked record;
BEGIN
	FOR checked IN SELECT * FROM (VALUES ('rate_limit_rules', 'INSERT OR UPDATE OF name, action, mode, '
		'settle'), ('rate_limit_rule_limits', 'INSERT OR DELETE OR UPDATE OF rule, unit, '
		'algorithm')) AS t(name, events)
	LOOP
		-- There is no CREATE OR REPLACE of a constraint trigger.
		IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = checked.name::regclass
			AND tgname = 'rate_limit_complete') THEN
			EXECUTE format('CREATE CONSTRAINT TRIGGER rate_limit_complete AFTER %s ON %I DEFERRABLE '
				'INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION rate_limit_check_complete()',
				checked.events, checked.name);
		END IF;
	END LOOP;
END $$;
