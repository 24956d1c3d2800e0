package schema

// HistoryVersion is the number of the history's schema. It grows with every change of History,
// so that proxies of different versions on one database leave the newest schema as it is.
const HistoryVersion = "1"

// History creates the tables, functions and the view of the history, or brings older ones up to
// date in place and keeps their rows. It can run any number of times, needs neither Counters nor
// Policy, and works on Postgres 14 and newer.
const History = refuseHistory + historyTables + historyPartitions + historyRollup + historyRecord + historyUpkeep + historyEnd

// historyEnd fixes the search_path of the functions to the schema in which they lie, and gives
// them the rights of the owner of the tables in the same command: see policyEnd.
const historyEnd = `
DO $$
DECLARE
	function record;
BEGIN
	FOR function IN SELECT p.oid::regprocedure AS signature FROM pg_proc p WHERE p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
		AND p.proname IN ('rate_limit_begin_batch', 'rate_limit_record_audit', 'rate_limit_record_metrics', 'rate_limit_record_usage', 'rate_limit_retain',
			'rate_limit_partitions', 'rate_limit_make_partition', 'rate_limit_cutoff', 'rate_limit_rollup', 'rate_limit_upkeep', 'rate_limit_holders', 'rate_limit_expired', 'rate_limit_drop_expired')
	LOOP
		EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, %I, pg_temp', function.signature, current_schema());
		EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', function.signature);
	END LOOP;
END $$;

CREATE OR REPLACE FUNCTION rate_limit_history_version() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT ` + HistoryVersion + `';
COMMENT ON FUNCTION rate_limit_history_version() IS 'The version of the tables of the history. The last command of the migration makes it.';
`

// HistoryReady returns one row with one int: 1 if History has nothing to do. It reads the
// catalogue only, and takes no lock on the tables.
const HistoryReady = `SELECT ` + historyReady + `::int`

// historyReady is whether History has nothing to do.
const historyReady = `(SELECT bool_and(to_regclass(t.name) IS NOT NULL) AND coalesce((SELECT substring(p.prosrc FROM '[0-9]+')::int >= ` + HistoryVersion + `
		FROM pg_catalog.pg_proc p WHERE p.oid = to_regprocedure('rate_limit_history_version()')), false)
	FROM (VALUES ('rate_limit_audit'), ('rate_limit_metrics'), ('rate_limit_usage'), ('rate_limit_writers'), ('rate_limit_retention')) AS t(name))`

// HistoryOnce is History for several processes at once: all but the first find that there is
// nothing to do when they have the lock.
const HistoryOnce = Lock + `
DO $once$ BEGIN
	IF NOT ` + historyReady + ` THEN
		EXECUTE $history$` + History + `$history$;
	END IF;
END $once$;`
