package schema

// Version is the number of the policy's schema. It grows with every change of Policy, so that
// proxies of different versions on one database leave the newest schema as it is.
const Version = "3"

// Policy creates the tables, triggers, functions and views of the policy, or brings older ones
// up to date in place and keeps their rows. It needs Counters. It can run any number of times.
// On a server older than Postgres 15 it fails with feature_not_supported.
const Policy = policyServer + refusePolicy + policyLists + policyPeople + policyRules + policyOverrides + policyChanges +
	policySuits + policyUsable + policyRenames + policyTriggers + policyRuleFunction + policyExplain + policyProxyFunctions + policyViews + policyEnd

// policyEnd fixes the search_path of the functions to the schema in which they lie, so that
// they find their tables whatever the search_path of the caller is. Those that write what
// their callers may not write get the rights of the owner in the same command as the path:
// without it a caller could put tables of its own in place.
const policyEnd = `
DO $$
DECLARE
	function record;
BEGIN
	FOR function IN SELECT p.oid::regprocedure AS signature, p.proname IN ('rate_limit_log_changes', 'rate_limit_check_overrides', 'rate_limit_check_complete', 'rate_limit_rename',
			'rate_limit_ban', 'rate_limit_forget') AS of_owner
		FROM pg_proc p WHERE p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
		AND p.proname IN ('rate_limit_change_ref', 'rate_limit_log_changes', 'rate_limit_check_overrides', 'rate_limit_complete', 'rate_limit_check_complete', 'rate_limit_rename', 'rate_limit_rule', 'rate_limit_explain', 'rate_limit_ban', 'rate_limit_forget',
			'rate_limit_rows')
	LOOP
		EXECUTE format('ALTER FUNCTION %s %s SET search_path = pg_catalog, %I, pg_temp', function.signature,
			CASE WHEN function.of_owner THEN 'SECURITY DEFINER' ELSE 'SECURITY INVOKER' END, current_schema());
		IF function.of_owner THEN
			EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', function.signature);
		END IF;
	END LOOP;
END $$;

CREATE OR REPLACE FUNCTION rate_limit_policy_version() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT ` + Version + `';
COMMENT ON FUNCTION rate_limit_policy_version() IS 'The version of these tables. The last command of the migration makes it.';
`

// policyTables are the tables of the policy, as elements of a VALUES list.
const policyTables = `('rate_limit_tiers'), ('rate_limit_users'), ('rate_limit_api_keys'), ('rate_limit_rules'), ('rate_limit_rule_limits'),
	('rate_limit_overrides'), ('rate_limit_bans'), ('rate_limit_changes')`

// PolicyWhole is whether the tables have all triggers that write rate_limit_changes. The
// migration makes them together with the tables. A restore makes them after all rows, so that
// tables without them may lack rows, too.
const PolicyWhole = `(SELECT count(*) >= 28 FROM pg_catalog.pg_trigger g
	WHERE g.tgname IN ('rate_limit_log_insert', 'rate_limit_log_update', 'rate_limit_log_delete', 'rate_limit_log_truncate')
	AND g.tgrelid IN (to_regclass('rate_limit_tiers'), to_regclass('rate_limit_users'), to_regclass('rate_limit_api_keys'), to_regclass('rate_limit_rules'),
		to_regclass('rate_limit_rule_limits'), to_regclass('rate_limit_overrides'), to_regclass('rate_limit_bans')))`

// Ready returns one row with four ints: 1 if Counters has nothing to do, 1 if Policy has
// nothing to do, the version of the server as in 150004, and 1 if a restore is under way or
// has failed: functions of the policy are there and its tables are not whole, or a table of
// counts has no primary key. It reads the catalogue only, and takes no lock on the tables.
const Ready = `SELECT (SELECT bool_and(coalesce(
	(SELECT count(*) = 12 FROM pg_catalog.pg_attribute a WHERE a.attrelid = to_regclass(t.name) AND NOT a.attisdropped
		AND a.attname IN ('prefix', 'key', 'count', 'prev_count', 'window_start', 'tokens', 'last_refill', 'expires_at',
			'hits', 'remainder', 'slot', 'granted'))
	AND to_regclass('idx_' || t.name || '_cleanup') IS NOT NULL, false))::int
	FROM (VALUES ('rate_limit_ephemeral'), ('rate_limit_durable')) AS t(name)),
` + policyReady + `::int,
current_setting('server_version_num')::int,
(EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.proname IN ('rate_limit_ban', 'rate_limit_log_changes', 'rate_limit_policy_version') AND pg_function_is_visible(p.oid)) AND NOT ` + PolicyWhole + `
	OR EXISTS (SELECT FROM (VALUES ('rate_limit_ephemeral'), ('rate_limit_durable')) AS t(name) WHERE to_regclass(t.name) IS NOT NULL
		AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = to_regclass(t.name) AND i.indisprimary)))::int`

// policyReady is whether Policy has nothing to do.
const policyReady = `(SELECT bool_and(to_regclass(t.name) IS NOT NULL) AND ` + PolicyWhole + ` AND coalesce((SELECT substring(p.prosrc FROM '[0-9]+')::int >= ` + Version + `
		FROM pg_catalog.pg_proc p WHERE p.oid = to_regprocedure('rate_limit_policy_version()')), false)
	FROM (VALUES ` + policyTables + `) AS t(name))`

// OldestPolicyServer is the oldest server that Policy works on, as Ready returns it.
const OldestPolicyServer = 150000

// Lock makes one process at a time run the rest of a migration. The number of the lock is
// arbitrary. A lock on a table that is in use is not waited for longer than lock_timeout,
// because all other users of the table wait behind it.
const Lock = `SELECT pg_advisory_xact_lock(1885827692);
SELECT set_config('lock_timeout', '500ms', true);`

// PolicyOnce is Policy for several processes at once: all but the first find that there is
// nothing to do when they have the lock.
const PolicyOnce = Lock + Nodes + `
DO $once$ BEGIN
	IF NOT ` + policyReady + ` THEN
		EXECUTE $policy$` + Policy + `$policy$;
	END IF;
END $once$;`
