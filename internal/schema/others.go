package schema

// The marks of a part are elements of a VALUES list: each table of the part, and its mark, which is a column
// that a table of another program with the same name would lack. A part refuses to run if a table lacks its
// mark, because CREATE TABLE IF NOT EXISTS would keep that table. A part also refuses a server that is too
// old.
const (
	counterMarks = `('rate_limit_ephemeral', 'prefix'), ('rate_limit_durable', 'prefix'),
	('rate_limit_processes', 'process'), ('rate_limit_ledger', 'charges'), ('rate_limit_notices', 'percent')`
	policyMarks = `('rate_limit_tiers', 'rank'), ('rate_limit_users', 'period_start'),
		('rate_limit_api_keys', 'digest'),
	('rate_limit_rules', 'count_by'), ('rate_limit_rule_limits', 'on_exceed'),
		('rate_limit_overrides', 'limit_name'),
	('rate_limit_bans', 'banned_by'), ('rate_limit_changes', 'xid'), ('rate_limit_prices', 'max_output')`
	nodeMarks = `('rate_limit_nodes', 'report'), ('rate_limit_secrets', 'value'),
		('rate_limit_grants', 'kind')`
	historyMarks = `('rate_limit_audit', 'duration_us'), ('rate_limit_metrics', 'settled'),
	('rate_limit_writers', 'batch'), ('rate_limit_retention', 'keep')`

	foreignBegin = `SELECT string_agg(format('the table %s.%I is of another program (it has no column "%s")',
		c.relnamespace::regnamespace, c.relname, t.mark), '; ' ORDER BY t.name)
	FROM (VALUES `
	foreignEnd = `) AS t(name, mark) JOIN pg_class c ON c.oid = to_regclass(t.name)
	WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = t.mark
		AND NOT a.attisdropped)`

	refuseBegin = `
DO $others$
DECLARE
	others CONSTANT text := (` + foreignBegin
	refuseEnd = foreignEnd + `);
BEGIN
	IF current_setting('server_version_num')::int < 150000 THEN
		RAISE EXCEPTION 'pg-ratelimit needs PostgreSQL 15 or newer, and this server is %',
			current_setting('server_version')
			USING ERRCODE = 'feature_not_supported';
	END IF;
	IF others IS NOT NULL THEN
		RAISE EXCEPTION '%: ` + ForeignTablesHint + `', others USING ERRCODE = 'duplicate_table';
	END IF;
END $others$;
`
	refuseCounters = refuseBegin + counterMarks + refuseEnd
	refuseNodes    = refuseBegin + nodeMarks + refuseEnd
	refusePolicy   = refuseBegin + policyMarks + refuseEnd
	refuseHistory  = refuseBegin + historyMarks + refuseEnd
)

// ForeignTablesHint is the advice about a table that ForeignTables names.
const ForeignTablesHint = "rename it, or give pg-ratelimit a schema of its own, with CREATE SCHEMA limits, " +
	"and search_path=limits in the DSN of all proxies and commands"

// ForeignTables returns a text that names the tables of other programs with names of this schema, or NULL.
const ForeignTables = foreignBegin + counterMarks + ", " + nodeMarks + ", " + policyMarks + ", " +
	historyMarks + foreignEnd
