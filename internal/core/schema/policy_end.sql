-- The last commands of the policy. They fix the search_path of the functions to the schema in which
-- they lie, so that they find their tables whatever the search_path of the caller is. Those that
-- write what their callers may not write get the rights of the owner in the same command as the
-- path: without it a caller could put tables of its own in place.

DO $$
DECLARE
	function record;
BEGIN
	FOR function IN SELECT p.oid::regprocedure AS signature, f.rights FROM (
			SELECT 'owner', unnest('{rate_limit_log_changes,rate_limit_check_overrides,'
				'rate_limit_check_complete,rate_limit_rename_references,rate_limit_forget}'::text[])
			UNION ALL SELECT 'administrator',
				unnest('{rate_limit_recent,rate_limit_used_by,rate_limit_rename,'
					'rate_limit_delete_tier,rate_limit_revoke_key,'
					'rate_limit_rotate_key,rate_limit_policy,rate_limit_policy_rows,rate_limit_policy_lists,'
				'rate_limit_policy_write,rate_limit_apply,rate_limit_set,rate_limit_rule,rate_limit_limit,'
				'rate_limit_tier,rate_limit_user,rate_limit_key,rate_limit_override,rate_limit_ban,'
				'rate_limit_unban,rate_limit_delete_rule,rate_limit_delete_limit,rate_limit_delete_user,'
				'rate_limit_delete_override}'::text[])
			UNION ALL SELECT 'anybody', unnest('{rate_limit_change_ref,rate_limit_complete}'::text[]))
				AS f(rights, name)
		JOIN pg_proc p ON p.proname = f.name AND p.pronamespace = (SELECT oid FROM pg_namespace
			WHERE nspname = current_schema())
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
