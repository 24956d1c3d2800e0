-- These triggers refuse an override with an amount that its limit cannot have: they apply the constraints of
-- rate_limit_rule_limits to the limit with the override's amount. A CHECK sees only one row, so both tables
-- have triggers. The triggers lock the rows of the limits: if one transaction changes a limit and another its
-- override, the second one waits, and sees the change of the first. One query checks all rows of a statement,
-- because a query for each row would be planned for each row.

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
	RETURN NULL;
END $$;
COMMENT ON FUNCTION rate_limit_check_overrides IS
	'Refuses overrides with amounts that their limits cannot have, and changes of limits that make existing '
	'overrides invalid.';
CREATE OR REPLACE TRIGGER rate_limit_suits AFTER INSERT ON rate_limit_overrides
	REFERENCING NEW TABLE AS changed_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_check_overrides();
CREATE OR REPLACE TRIGGER rate_limit_still_suits AFTER UPDATE ON rate_limit_overrides
	REFERENCING NEW TABLE AS changed_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_check_overrides();
CREATE OR REPLACE TRIGGER rate_limit_suits AFTER UPDATE ON rate_limit_rule_limits
	REFERENCING NEW TABLE AS changed_rows FOR EACH STATEMENT EXECUTE FUNCTION rate_limit_check_overrides();

CREATE OR REPLACE FUNCTION rate_limit_check_unit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	IF EXISTS (SELECT FROM rate_limit_overrides o WHERE (o.rule, o.limit_name) = (OLD.rule, OLD.name)
		AND o.events IS NOT NULL) THEN
		RAISE check_violation USING MESSAGE = format(
			'unit: %s: must stay %s while overrides have amounts of it', to_json(NEW.unit), OLD.unit);
	END IF;
	RETURN NEW;
END $$;
COMMENT ON FUNCTION rate_limit_check_unit IS
	'Refuses to make a limit in money of another limit, or the reverse, while it has overrides.';
CREATE OR REPLACE TRIGGER rate_limit_check_unit BEFORE UPDATE OF unit ON rate_limit_rule_limits FOR EACH ROW
	WHEN ((OLD.unit = 'money') <> (NEW.unit = 'money')) EXECUTE FUNCTION rate_limit_check_unit();
