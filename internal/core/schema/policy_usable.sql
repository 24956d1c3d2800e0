-- Triggers that reject rules which proxies cannot use, as far as SQL can check. Constraints would reject
-- every change of an older row that violates them, even one that turns the rule off.
--
-- A rule and its limits are written by several commands, so the triggers that compare them wait for
-- the end of the transaction. A rule that is off may be incomplete.

CREATE OR REPLACE FUNCTION rate_limit_rule_fault(paths text[], hosts text[], count_by text[]) RETURNS text
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce((SELECT format('paths: %s: must be a path such as /login, /u/*/files or /api/*, where * is a '
		'whole segment, without empty or dot segments, and not percent-encoded', to_json(p))
		FROM unnest(paths) AS p
		WHERE p !~ '^(/|(/(?!\.{1,2}(/|$))(\*|([^/*?\\%]|%(?![0-9A-Fa-f]{2}))+))+/?)$' LIMIT 1),
	(SELECT format('hosts: %s: must be a host such as example.com or *.example.com, without a port, '
		'and with international names in their xn-- form', to_json(h)) FROM unnest(hosts) AS h
		WHERE h !~ '^((\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|'
			'[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*|'
			'\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\])$' LIMIT 1),
	-- Names of headers differ in more than upper and lower case.
	(SELECT format('count_by: %s: must be given once', to_json(min(a)))
		FROM unnest(count_by) AS c, unnest(string_to_array(c, '|')) AS a
		GROUP BY lower(a) HAVING count(*) > 1 LIMIT 1));
COMMENT ON FUNCTION rate_limit_rule_fault IS
	'What is wrong with paths, hosts and count_by of a rule. NULL: nothing.';

CREATE OR REPLACE FUNCTION rate_limit_check_rule() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	turned_on CONSTANT boolean := TG_OP = 'UPDATE' AND OLD.mode = 'off' AND NEW.mode <> 'off';
	wrong CONSTANT text := rate_limit_rule_fault(
		CASE WHEN turned_on OR NEW.paths IS DISTINCT FROM OLD.paths THEN NEW.paths END,
		CASE WHEN turned_on OR NEW.hosts IS DISTINCT FROM OLD.hosts THEN NEW.hosts END,
		CASE WHEN turned_on OR NEW.count_by IS DISTINCT FROM OLD.count_by THEN NEW.count_by END);
BEGIN
	IF wrong IS NOT NULL THEN
		RAISE EXCEPTION '%', wrong USING ERRCODE = 'check_violation', SCHEMA = TG_TABLE_SCHEMA,
			TABLE = TG_TABLE_NAME, COLUMN = split_part(wrong, ':', 1);
	END IF;
	RETURN NULL;
END $$;
COMMENT ON FUNCTION rate_limit_check_rule IS 'Refuses paths, hosts and count_by that proxies cannot use.';
CREATE OR REPLACE TRIGGER rate_limit_usable AFTER INSERT OR UPDATE OF paths, hosts, count_by, mode
	ON rate_limit_rules FOR EACH ROW EXECUTE FUNCTION rate_limit_check_rule();

CREATE OR REPLACE FUNCTION rate_limit_complete(rule text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	r record;
	fault text;
BEGIN
	-- Of two transactions that each delete a limit, one waits here and sees the other's change.
	SELECT action, settle INTO r FROM rate_limit_rules WHERE name = $1 AND mode <> 'off' FOR NO KEY UPDATE;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	SELECT CASE WHEN r.action = 'limit' AND count(*) = 0
			THEN 'limits: missing: a rule that limits must have one or more of them'
		WHEN r.action <> 'limit' AND count(*) > 0
			THEN format('action: %L: must be limit for a rule with limits', r.action)
		WHEN r.settle IS NOT NULL AND count(*) FILTER (WHERE l.algorithm <> 'in_flight') = 0
			THEN format('settle: %s: must be left out with in_flight: a slot ends with its request',
				to_json(r.settle)) END INTO fault FROM rate_limit_rule_limits l WHERE l.rule = $1;
	IF fault IS NOT NULL THEN
		RAISE EXCEPTION '%', fault USING ERRCODE = CASE WHEN fault LIKE 'limits%' THEN 'not_null_violation'
			ELSE 'check_violation' END, DETAIL = format('The rule is %L.', $1), HINT = CASE left(fault, 1)
			WHEN 'l' THEN 'Such as per_hour, or a row of rate_limit_rule_limits with any other time.'
			WHEN 'a' THEN 'Make another rule, or delete its rows of rate_limit_rule_limits.' ELSE '' END;
	END IF;
END $$;
COMMENT ON FUNCTION rate_limit_complete IS
	'Fails if a rule that is not off limits and has no limit, does not limit and has one, or settles and has '
	'only a limit of requests in flight.';

CREATE OR REPLACE FUNCTION rate_limit_check_complete() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	IF TG_TABLE_NAME = 'rate_limit_rules' THEN
		PERFORM rate_limit_complete(NEW.name);
		RETURN NULL;
	END IF;
	IF TG_OP <> 'INSERT' THEN
		PERFORM rate_limit_complete(OLD.rule);
	END IF;
	IF TG_OP <> 'DELETE' THEN
		PERFORM rate_limit_complete(NEW.rule);
	END IF;
	RETURN NULL;
END $$;
COMMENT ON FUNCTION rate_limit_check_complete IS
	'Refuses rules whose action and limits do not go together, at the end of the transaction.';
DO $$
DECLARE
	checked record;
BEGIN
	FOR checked IN SELECT * FROM (VALUES ('rate_limit_rules', 'INSERT OR UPDATE OF name, action, mode, '
		'settle'), ('rate_limit_rule_limits', 'INSERT OR DELETE OR UPDATE OF rule')) AS t(name, events)
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
