-- These triggers refuse an override with an amount that its limit cannot have: they apply the constraints of
-- rate_limit_rule_limits to the limit with the override's amount. A CHECK sees only one row, so both tables
-- have triggers. The triggers lock the rows of the limits: if one transaction changes a limit and another its
-- override, the second one waits, and sees the change of the first. One query checks all rows of a statement,
-- because a query for each row would be planned for each row.

-- Refuses overrides with amounts that their limits cannot have, and changes of limits that make existing
-- overrides invalid. Warns of overrides of 0, and of those without an effect.
CREATE OR REPLACE FUNCTION rate_limit_check_overrides() RETURNS trigger
	LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	faults CONSTANT text := (SELECT string_agg(format('WHEN NOT (%s) THEN %L',
			pg_get_expr(c.conbin, c.conrelid), c.conname), ' ')
		FROM pg_constraint c
		JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attname IN ('events', 'burst')
		WHERE c.conrelid = 'rate_limit_rule_limits'::regclass AND c.contype = 'c'
			AND a.attnum = ANY (c.conkey) AND cardinality(c.conkey) > 1);
	wrong record;
BEGIN
	EXECUTE format('WITH checked AS MATERIALIZED (SELECT o.id, f.fault FROM rate_limit_rule_limits l
			JOIN rate_limit_overrides o ON (o.rule, o.limit_name) = (l.rule, l.name)
			CROSS JOIN LATERAL (SELECT CASE %s END AS fault FROM jsonb_populate_record(l,
				jsonb_build_object(''events'', o.events, ''burst'', coalesce(o.burst, l.burst)))) AS f
			WHERE %s FOR SHARE OF l)
		SELECT * FROM checked WHERE fault IS NOT NULL ORDER BY id LIMIT 1', faults, CASE TG_TABLE_NAME
			WHEN 'rate_limit_overrides' THEN 'o.id IN (SELECT id FROM changed_rows)'
			ELSE '(l.rule, l.name) IN (SELECT rule, name FROM changed_rows)' END) INTO wrong;
	IF wrong.id IS NOT NULL THEN
		RAISE EXCEPTION 'the override % violates check constraint "%"', wrong.id, wrong.fault
			USING ERRCODE = 'check_violation', CONSTRAINT = wrong.fault;
	END IF;
	IF TG_TABLE_NAME = 'rate_limit_overrides' THEN
		FOR wrong IN SELECT * FROM (SELECT o.rule, o.limit_name, coalesce(o.user_id, 'the tier ' || o.tier,
				'the key ' || o.key_id) AS target, CASE WHEN o.events = 0 AND l.on_exceed = 'refuse'
				THEN '0: refuses every request'
				WHEN NOT r.tiers && (SELECT array_agg(t) || o.tier FROM rate_limit_users u
					LEFT JOIN rate_limit_api_keys k USING (user_id), unnest(ARRAY[u.tier, k.tier,
						CASE WHEN isfinite(u.tier_until) THEN 'anonymous' END]) AS t
					WHERE u.user_id = coalesce(o.user_id, (SELECT a.user_id FROM rate_limit_api_keys a
						WHERE a.id = o.key_id)))
				THEN 'has no effect: the rule is for the tiers ' || array_to_string(r.tiers, ', ')
				END AS fault
			FROM changed_rows o JOIN rate_limit_rules r ON r.name = o.rule
				JOIN rate_limit_rule_limits l ON (l.rule, l.name) = (o.rule, o.limit_name)) AS w
			WHERE w.fault IS NOT NULL LIMIT 10
		LOOP
			RAISE WARNING '%/% for %: %', wrong.rule, wrong.limit_name, wrong.target, wrong.fault
				USING ERRCODE = 'RL003';
		END LOOP;
	END IF;
	RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER rate_limit_suits AFTER INSERT ON rate_limit_overrides
	REFERENCING NEW TABLE AS changed_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_check_overrides();
CREATE OR REPLACE TRIGGER rate_limit_still_suits AFTER UPDATE ON rate_limit_overrides
	REFERENCING NEW TABLE AS changed_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_check_overrides();
CREATE OR REPLACE TRIGGER rate_limit_suits AFTER UPDATE ON rate_limit_rule_limits
	REFERENCING NEW TABLE AS changed_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_check_overrides();

-- Refuses to change the unit of a limit with overrides, gives a limit with another unit other counters, and
-- warns of an amount of 0.
--
-- A new limit may have the name of one that was deleted, and would have its counts.
CREATE OR REPLACE FUNCTION rate_limit_check_limit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
	old jsonb := to_jsonb(OLD);
BEGIN
	IF TG_OP = 'INSERT' THEN
		old := (SELECT c.before FROM rate_limit_changes c WHERE c.kind = 'limit'
			AND c.ref = concat(NEW.rule, '/', NEW.name) ORDER BY c.seq DESC LIMIT 1);
		NEW.counted_as := coalesce(NEW.counted_as, old ->> 'counted_as');
	ELSIF OLD.unit <> NEW.unit AND EXISTS (SELECT FROM rate_limit_overrides o
		WHERE (o.rule, o.limit_name) = (OLD.rule, OLD.name) AND o.events IS NOT NULL) THEN
		RAISE check_violation USING MESSAGE = format(
			'unit: %s: must stay %s while overrides have amounts of it', to_json(NEW.unit), OLD.unit);
	END IF;
	IF old ->> 'unit' <> NEW.unit THEN
		NEW.counted_as := concat(NEW.name, ':',
			coalesce(substring(old ->> 'counted_as' FROM ':(\d+)$'), '0')::int + 1);
	END IF;
	IF NEW.events = 0 AND NEW.on_exceed = 'refuse' AND OLD.events IS DISTINCT FROM 0 THEN
		RAISE WARNING '%/%: 0: refuses every request', NEW.rule, NEW.name USING ERRCODE = 'RL003';
	END IF;
	RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER rate_limit_check_limit BEFORE INSERT OR UPDATE OF unit, events
	ON rate_limit_rule_limits FOR EACH ROW EXECUTE FUNCTION rate_limit_check_limit();
