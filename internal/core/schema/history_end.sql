-- The last commands of the history. They set the search_path of the functions to their schema, and in the
-- same command give them the rights of the owner of the tables, except to those that only answer queries:
-- see policy_end.sql.

DO $$
DECLARE
	function record;
BEGIN
	FOR function IN SELECT p.oid::regprocedure AS signature, CASE WHEN p.proname = 'rate_limit_usage_between'
		THEN 'INVOKER' ELSE 'DEFINER' END AS security FROM pg_proc p
		WHERE p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
		AND p.proname IN ('rate_limit_begin_batch', 'rate_limit_record_audit', 'rate_limit_record_metrics',
			'rate_limit_retain', 'rate_limit_caller', 'rate_limit_owns_history',
			'rate_limit_partitions', 'rate_limit_partitions_of', 'rate_limit_make_partition',
			'rate_limit_make_partition_of', 'rate_limit_cutoff', 'rate_limit_upkeep',
			'rate_limit_holders', 'rate_limit_expired', 'rate_limit_drop_expired', 'rate_limit_usage_between')
	LOOP
		EXECUTE format('ALTER FUNCTION %s SECURITY %s SET search_path = pg_catalog, %I, pg_temp',
			function.signature, function.security, current_schema());
		EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', function.signature);
	END LOOP;
END $$;

-- The number grows with every change of the history, so that proxies of different versions on one
-- database leave the newest schema as it is.
CREATE OR REPLACE FUNCTION rate_limit_history_version() RETURNS int
	LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 1';
COMMENT ON FUNCTION rate_limit_history_version() IS
	'The version of the tables of the history. The last command of the migration makes it.';
