package schema

// The counts of a database can be divided into shards, which are schemas on the servers of Citus.
const (
	// LedgerUpkeep makes the partitions of the ledger, and drops those past their retention.
	LedgerUpkeep = `SELECT rate_limit_ledger_upkeep()`

	// LedgerUpkeepOf is LedgerUpkeep, also for the day $1, in days since 1970.
	LedgerUpkeepOf = `SELECT rate_limit_ledger_upkeep(date 'epoch' + $1::int8::int)`

	// TotalsUpkeep sums a day of the ledger, and returns 1 if there may be more.
	TotalsUpkeep = `SELECT rate_limit_totals_upkeep()::int`

	// Notice makes the notices of counters, a list of objects as JSON. NoticeUpkeep makes those that are
	// missing.
	Notice       = `SELECT rate_limit_notice($1::text::jsonb)`
	NoticeUpkeep = `SELECT rate_limit_notice_upkeep()`

	// LostUpkeep returns what killed processes held, once: a number and a sentence.
	LostUpkeep = `SELECT least(units, 2305843009213693952)::int8, summary FROM rate_limit_lost_upkeep()`

	// ShardsReady returns 1 if the counts are in shards.
	ShardsReady = `SELECT (to_regprocedure('rate_limit_shards()') IS NOT NULL)::int`

	// ShardNames returns the schemas of the shards, in the order of the shards.
	ShardNames = `SELECT schema FROM rate_limit_shards() ORDER BY shard`

	// ShardRoutes returns, for each table of each shard in $1, the number of the shard from 1, the name of
	// the table, the table that has the rows, the call of the guard, and the server. Every server of
	// Citus returns the same.
	ShardRoutes = `SELECT p.shard::int, c.relname::text, quote_ident(n.nspname) || '.' || c.relname ||
		'_' || s.shardid,
	'rate_limit_guard(' || s.shardid || ')', w.nodename::text, w.nodeport::int
FROM unnest($1::text[]) WITH ORDINALITY AS p(schema, shard)
JOIN pg_catalog.pg_namespace n ON n.nspname = p.schema
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid
	AND c.relname IN ('rate_limit_ephemeral', 'rate_limit_durable', 'rate_limit_processes',
		'rate_limit_ledger')
JOIN pg_catalog.pg_dist_shard s ON s.logicalrelid = c.oid
JOIN pg_catalog.pg_dist_placement l ON l.shardid = s.shardid
JOIN pg_catalog.pg_dist_node w ON w.groupid = l.groupid AND w.noderole = 'primary'`
)
