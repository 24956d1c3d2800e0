package schema

// NodeIsLive is a condition that holds if the row n of rate_limit_nodes belongs to a running proxy.
const NodeIsLive = `(n.ended IS NULL AND n.seen BETWEEN now() - interval '10 s' AND now() + interval '10 s'
	AND n.system = (SELECT system_identifier FROM pg_control_system()))`

// MissingGrants is an expression for a text with the steps that would allow the role of the session to make
// decisions: a call of rate_limit_grant, tables to create, and tables without row level security. It is NULL
// if the role may make decisions already.
const MissingGrants = `(SELECT string_agg(DISTINCT
	CASE WHEN to_regclass(t.name) IS NULL THEN 'create the table ' || t.name ||
		' with schema.sql'
		WHEN row_security_active(to_regclass(t.name)) THEN
			format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY', t.name)
		ELSE format('SELECT rate_limit_grant(%L, ''proxy'')', current_user) END, '; ')
	FROM (VALUES ('rate_limit_durable'), ('rate_limit_ephemeral')) AS t(name)
	WHERE to_regclass(t.name) IS NULL OR row_security_active(to_regclass(t.name)) OR NOT (
		SELECT bool_and(has_table_privilege(to_regclass(t.name), p))
		FROM unnest('{SELECT,INSERT,UPDATE}'::text[]) AS p))`

// ServerIdentity is an expression for the identity of the data that a session reads, as one text: the start
// of the server in microseconds, and after a space the oid of rate_limit_changes, or 0 if that is missing. A
// failover, a restart and a restore of the server's files change the start. A restore of a dump of the policy
// changes the oid.
const ServerIdentity = `concat((extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, ' ',
	coalesce(to_regclass('rate_limit_changes')::oid, 0))`
