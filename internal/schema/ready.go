package schema

// NodeIsLive is a condition that holds if the row n of rate_limit_nodes belongs to a running proxy.
const NodeIsLive = `(n.ended IS NULL AND n.seen BETWEEN now() - interval '10 s' AND now() + interval '10 s'
	AND n.system = (SELECT system_identifier FROM pg_control_system()))`

// NodesReady returns 1 if the tables of Nodes are up to date, and 0 otherwise.
const NodesReady = `SELECT (to_regclass('rate_limit_proxies') IS NOT NULL AND (SELECT bool_and(EXISTS (
	SELECT FROM pg_attribute a WHERE a.attrelid = to_regclass(t.name) AND a.attname = t.mark
		AND NOT a.attisdropped)) FROM (VALUES ` + nodeMarks + `) AS t(name, mark)))::int`

// MissingGrants is an expression for a text with the steps that would allow the role of the session to make
// decisions: a call of rate_limit_grant, and tables to create. It is NULL if the role may make decisions
// already.
const MissingGrants = `(SELECT string_agg(DISTINCT
	CASE WHEN to_regclass(t.name) IS NULL THEN 'create the table ' || t.name ||
		' with caddy pg-ratelimit migrate, or schema.sql'
		ELSE format('SELECT rate_limit_grant(%L, ''proxy'')', current_user) END, '; ')
	FROM (VALUES ('rate_limit_durable'), ('rate_limit_ephemeral')) AS t(name)
	WHERE to_regclass(t.name) IS NULL OR NOT (
		SELECT bool_and(has_table_privilege(to_regclass(t.name), p))
		FROM unnest('{SELECT,INSERT,UPDATE}'::text[]) AS p))`

// HistoryReady returns 1 if History is up to date, and 0 otherwise. The query only reads the
// catalog, and takes no lock on the tables.
const HistoryReady = `SELECT ` + historyReady + `::int`

// historyReady is a condition that holds if the tables of History are up to date.
const historyReady = `(SELECT bool_and(to_regclass(t.name) IS NOT NULL)
	AND coalesce((SELECT substring(p.prosrc FROM '[0-9]+')::int >= ` + historyVersion + `
		FROM pg_proc p WHERE p.oid = to_regprocedure('rate_limit_history_version()')), false)
	FROM (VALUES ` + historyMarks + `) AS t(name, mark))`

// PolicyWhole is a condition that holds if the tables have all triggers that write rate_limit_changes, and no
// trigger of the policy is disabled. The migration creates the triggers together with the tables. A restore
// instead creates the triggers after all rows, or disables them while it writes rows. So if the triggers are
// missing or disabled, the tables may lack rows.
const PolicyWhole = `(SELECT count(*) FILTER (WHERE g.tgname LIKE 'rate\_limit\_log\_%') >= 32
		AND bool_and(g.tgenabled <> 'D') FROM pg_trigger g
	WHERE g.tgname LIKE 'rate\_limit\_%'
		AND g.tgrelid IN (SELECT to_regclass(t.name) FROM (VALUES ` + policyMarks + `) AS t(name, mark)))`

// Ready returns three ints, each 0 or 1: whether Counters is up to date, whether Policy is up to date, and
// whether RestoredInPart holds. The query only reads the catalog, and takes no lock on the tables.
const Ready = `SELECT (SELECT bool_and(coalesce(
	(SELECT count(*) = 14 FROM pg_attribute a ` + counterColumns + `
		WHERE a.attrelid = to_regclass(t.name) AND a.atttypid = w.type::regtype)
	AND to_regclass('idx_' || t.name || '_cleanup') IS NOT NULL, false))::int
	* (to_regclass('rate_limit_processes') IS NOT NULL AND (SELECT count(*) = 7 FROM pg_proc p
		WHERE p.proname IN ('rate_limit_counter_key', 'rate_limit_counters', 'rate_limit_usage_of',
			'rate_limit_forget_person', 'rate_limit_counted_prefix', 'rate_limit_ledger_upkeep',
			'rate_limit_notice')
		AND pg_function_is_visible(p.oid)))::int
	FROM (VALUES ('rate_limit_ephemeral'), ('rate_limit_durable')) AS t(name)),
` + policyReady + `::int,
` + RestoredInPart + `::int`

// counterColumns joins the columns a of a table with those of the tables of counts, and with their types.
const counterColumns = `JOIN (VALUES ('prefix', 'text'), ('key', 'text'), ('count', 'bigint'),
		('prev_count', 'bigint'), ('window_start', 'timestamptz'), ('tokens', 'float8'),
		('last_refill', 'timestamptz'), ('expires_at', 'timestamptz'), ('hits', 'timestamptz[]'),
		('remainder', 'bigint'), ('slot', 'int'), ('granted', 'bigint'), ('slots', 'bigint[]'),
		('held', 'bigint[]')
	) AS w(name, type) ON a.attname = w.name AND NOT a.attisdropped`

// refuseTypes fails if a column of a table of counts has another type.
const refuseTypes = `
DO $types$
DECLARE
	wrong CONSTANT text := (SELECT string_agg(format('%s: the column %s has the type %s, must be %s: '
			'ALTER TABLE %1$s ALTER COLUMN %2$s TYPE %4$s', a.attrelid::regclass, a.attname,
			format_type(a.atttypid, a.atttypmod), w.type), '; ')
		FROM pg_attribute a ` + counterColumns + `
		WHERE a.attrelid IN ('rate_limit_ephemeral'::regclass, 'rate_limit_durable'::regclass)
			AND a.atttypid <> w.type::regtype);
BEGIN
	IF wrong IS NOT NULL THEN
		RAISE EXCEPTION '%', wrong USING ERRCODE = 'datatype_mismatch';
	END IF;
END $types$;
`

// RestoredInPart is a condition that holds if only some of the tables exist, because a restore is running or
// has failed. The condition holds in each of these cases:
//
//   - A function of the policy exists, but PolicyWhole does not hold.
//   - The version of the history exists, but not all tables of the history.
//   - A function of the registry exists, but neither the registry nor the tables of counts.
//   - A table of counts exists without its primary key.
//
// The last case reads pg_class and pg_index from one snapshot. to_regclass would find tables that another
// process created after the snapshot, for which the snapshot has no indexes.
//
// A restore creates functions before tables, and tables before keys and triggers, and drops them in the
// opposite order, because pg_dump sorts by kind and then by name. By its name, rate_limit_apply is the first
// function of the policy that a restore creates, and the last that it drops.
const RestoredInPart = `(` + functionExists + `IN ('rate_limit_apply', 'rate_limit_policy_version'))
	AND NOT ` + PolicyWhole + `
	OR ` + functionExists + `= 'rate_limit_history_version')
		AND (SELECT bool_or(c.oid IS NULL) FROM (VALUES ` + historyMarks + `) AS t(name, mark)
			LEFT JOIN pg_class c ON c.relname = t.name AND pg_table_is_visible(c.oid))
	OR ` + functionExists + `= 'rate_limit_behind')
		AND to_regclass('rate_limit_ephemeral') IS NULL AND to_regclass('rate_limit_nodes') IS NULL
	OR EXISTS (SELECT FROM pg_class c
		WHERE c.relname IN ('rate_limit_ephemeral', 'rate_limit_durable') AND pg_table_is_visible(c.oid)
		AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)))`

// functionExists begins a condition that holds if a function exists. A comparison with the name of the
// function and a closing parenthesis complete the condition.
const functionExists = `EXISTS (SELECT FROM pg_proc p
	WHERE pg_function_is_visible(p.oid) AND p.proname `

// policyReady is a condition that holds if the tables of Policy are up to date.
const policyReady = `(SELECT bool_and(to_regclass(t.name) IS NOT NULL) AND ` + PolicyWhole + `
	AND coalesce((SELECT substring(p.prosrc FROM '[0-9]+')::int >= ` + policyVersion + `
		FROM pg_proc p WHERE p.oid = to_regprocedure('rate_limit_policy_version()')), false)
	FROM (VALUES ` + policyMarks + `) AS t(name, mark))`

// ServerIdentity is an expression for the identity of the data that a session reads, as one text: the start
// of the server in microseconds, and after a space the oid of rate_limit_changes, or 0 if that is missing. A
// failover, a restart and a restore of the server's files change the start. A restore of a dump of the policy
// changes the oid.
const ServerIdentity = `concat((extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, ' ',
	coalesce(to_regclass('rate_limit_changes')::oid, 0))`
