package schema

// The counts of a database can be divided into parts, which are schemas on the servers of Citus.
const (
	// PartsFunction creates the function that returns the parts. $1 stands for the array of their
	// schemas. Citus passes functions on to new workers.
	PartsFunction = `CREATE OR REPLACE FUNCTION rate_limit_parts() RETURNS TABLE (part int,
		schema text) LANGUAGE sql IMMUTABLE AS $$
	SELECT p.part::int - 1, p.schema FROM unnest($1::text[]) WITH ORDINALITY AS p(schema, part) $$;
COMMENT ON FUNCTION rate_limit_parts() IS
	'The parts of the counts. A subject is in the part that is the first four bytes of its SHA-256 modulo '
	'the number of parts, which cannot change.';`

	// PartTables creates the tables of a part in the first schema of the search_path.
	PartTables = counters

	// Parts creates what the parts share, and stops counting in the tables outside them.
	Parts = citusParts

	// PartsReady returns 1 if the counts are in parts.
	PartsReady = `SELECT (to_regprocedure('rate_limit_parts()') IS NOT NULL)::int`

	// PartNames returns the schemas of the parts, in the order of the parts.
	PartNames = `SELECT schema FROM rate_limit_parts() ORDER BY part`

	// PartRoutes returns, for each table of each part in $1, the number of the part from 1, the name of
	// the table, the table that has the rows, the call of the guard, and the server. Every server of
	// Citus returns the same.
	PartRoutes = `SELECT p.part::int, c.relname::text, quote_ident(n.nspname) || '.' || c.relname ||
		'_' || s.shardid,
	'rate_limit_guard(' || s.shardid || ')', w.nodename::text, w.nodeport::int
FROM unnest($1::text[]) WITH ORDINALITY AS p(schema, part)
JOIN pg_catalog.pg_namespace n ON n.nspname = p.schema
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid
	AND c.relname IN ('rate_limit_ephemeral', 'rate_limit_durable', 'rate_limit_processes')
JOIN pg_catalog.pg_dist_shard s ON s.logicalrelid = c.oid
JOIN pg_catalog.pg_dist_placement l ON l.shardid = s.shardid
JOIN pg_catalog.pg_dist_node w ON w.groupid = l.groupid AND w.noderole = 'primary'`
)
