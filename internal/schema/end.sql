-- These commands end the migration. Each function gets a fixed search_path. Without one, a function with the
-- rights of the owner would look up tables in the caller's search_path, where a caller can put tables of its
-- own. Only the owner may call functions without a grant.
--
-- A function with the rights of the owner, and a trigger, also gets fixed values of the settings that change
-- what its commands mean. Otherwise its caller could set, for example, a TimeZone with days of 46 hours, and
-- so shorten a retention.
--
-- A body that is parsed when the function is created, by RETURN or BEGIN ATOMIC, needs no search_path, and
-- must not have one, because Postgres would then not inline the function. An IMMUTABLE function uses no
-- table. rate_limit_counters, rate_limit_override_of and rate_limit_lineage name their schema.
--
-- Default privileges have no effect on new objects: rate_limit_strip takes them back.

DO $$
DECLARE
	function record;
	setting text;
	had CONSTANT oid[] := current_setting('pg_ratelimit.had');
	own CONSTANT oid := to_regnamespace(quote_ident(current_schema()));
BEGIN
	PERFORM rate_limit_strip(ARRAY(SELECT c.oid FROM pg_class c
			WHERE c.relnamespace = own AND c.oid <> ALL (had)
		UNION ALL SELECT p.oid FROM pg_proc p WHERE p.pronamespace = own AND p.oid <> ALL (had)));
	FOR function IN SELECT p.oid::regprocedure AS signature,
			p.prosecdef OR p.prorettype = 'trigger'::regtype AS fixed FROM pg_proc p
		WHERE p.pronamespace = own AND p.proname LIKE 'rate\_limit\_%'
			AND p.proname NOT IN ('rate_limit_counters', 'rate_limit_override_of', 'rate_limit_lineage')
			AND p.provolatile <> 'i' AND p.prosqlbody IS NULL AND pg_has_role(p.proowner, 'USAGE')
			AND NOT EXISTS (SELECT FROM unnest(p.proconfig) AS s WHERE s LIKE 'search_path=%')
	LOOP
		EXECUTE format('ALTER ROUTINE %s SET search_path = pg_catalog, %I, pg_temp', function.signature,
			current_schema());
		FOREACH setting IN ARRAY CASE WHEN function.fixed THEN ARRAY['TimeZone = ''UTC''',
			'DateStyle = ''ISO, YMD''', 'IntervalStyle = ''postgres''', 'bytea_output = ''hex''',
			'extra_float_digits = 1', 'array_nulls = on', 'standard_conforming_strings = on',
			'quote_all_identifiers = off', 'lc_numeric = ''C''', 'lc_time = ''C''', 'lc_monetary = ''C''']
			ELSE '{}' END LOOP
			EXECUTE format('ALTER ROUTINE %s SET %s', function.signature, setting);
		END LOOP;
	END LOOP;
	FOR function IN SELECT p.oid::regprocedure AS signature FROM pg_proc p
		WHERE p.pronamespace = own AND p.proname LIKE 'rate\_limit\_%' AND rate_limit_is_for_all(p)
			AND p.oid <> ALL (had) AND pg_has_role(p.proowner, 'USAGE')
			AND NOT has_function_privilege('public', p.oid, 'EXECUTE')
	LOOP
		EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', function.signature);
	END LOOP;
END $$;

SELECT rate_limit_grant(g.role, g.kind) FROM rate_limit_grants g JOIN pg_roles r ON r.rolname = g.role;
SELECT rate_limit_ledger_upkeep();
