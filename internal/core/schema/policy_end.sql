-- The last commands of the policy. They fix the search_path of the functions to the schema in which
-- they lie, so that they find their tables whatever the search_path of the caller is. Those that
-- write what their callers may not write get the rights of the owner in the same command as the
-- path: without it a caller could put tables of its own in place.

DO $$
DECLARE
	function record;
BEGIN
	FOR function IN SELECT p.oid::regprocedure AS signature, f.rights
		FROM (VALUES ('owner', 'log_changes|check_overrides|check_complete|rename_references|forget'),
			('administrator', 'recent|used_by|rename|revoke_key|rotate_key|policy(_rows|_lists|_write)?|'
				'apply|set|(delete_)?(rule|limit|tier|user|override)|key|ban|unban'),
			('anybody', 'change_ref|complete'))
			AS f(rights, names)
		JOIN pg_proc p ON p.proname ~ concat('^rate_limit_(', f.names, ')$')
			AND p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
	LOOP
		EXECUTE format('ALTER FUNCTION %s %s SET search_path = pg_catalog, %I, pg_temp', function.signature,
			CASE function.rights WHEN 'owner' THEN 'SECURITY DEFINER' ELSE 'SECURITY INVOKER' END,
				current_schema());
		IF function.rights <> 'anybody' THEN
			EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', function.signature);
		END IF;
	END LOOP;
END $$;

-- The number grows with every change of the policy, so that proxies of different versions on one
-- database leave the newest schema as it is.
CREATE OR REPLACE FUNCTION rate_limit_policy_version() RETURNS int
	LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 1';
COMMENT ON FUNCTION rate_limit_policy_version() IS
	'The version of these tables. The last command of the migration makes it.';
