// Package statement writes the SQL that counts. A Key names what a statement does: one kind of operation on
// rows of one algorithm in one table. Texts writes the text of each Key once. The engine adds the arguments,
// an element for each row, and reads the results.
//
// Invariants:
//   - All statements lock rows in the order of prefix and key.
//   - A statement sets the lock timeout and synchronous_commit itself, so it needs no explicit transaction.
//   - A statement finds rows by the primary key, also on a table without statistics.
//
// The files, from the top down: text.go, sql.go.
//
// Traefik interprets this package: see internal/testkit/imports/interpreted.go for the restrictions.
package statement

import "time"

// $1 is the result of Clock.
const (
	clockSQL = `WITH clock AS MATERIALIZED (SELECT coalesce(timestamptz 'epoch'
	+ nullif(($1::bigint[])[1], 0) * interval '1 microsecond', clock_timestamp()) AS now{prelude})`
	lockSQL  = `, set_config('lock_timeout', ($1::bigint[])[2]::text, true)`
	asyncSQL = `, set_config('synchronous_commit', 'off', true)`
	diskSQL  = `, set_config('synchronous_commit', 'local', true)` // waits for the disk, and for no standby
)

// Clock returns the first parameter of statements. now is the time in microseconds since the Unix
// epoch; with 0, each statement reads the server's clock, once. lockWait is the lock timeout, at least 1 ms,
// because 0 would be no bound.
func Clock(now int64, lockWait time.Duration) []int64 {
	wait := lockWait.Milliseconds()
	if wait < 1 {
		wait = 1
	}
	return []int64{now, wait}
}

// chargeSQL decides n hits of equal cost on each key. It has two forms. If all entries have the same limit
// and cost, limit and cost are scalar parameters, and the caller sorts the keys in byte order. Otherwise each
// parameter is an array with an element for each entry, and the server sorts the entries.
//
// In both forms each writer locks its rows in the order of prefix and key, so no two writers can wait for
// each other. The first form has this order although SQL promises none without ORDER BY, because its one
// source of rows returns the elements of the arrays in turn, and is joined only with single rows.
// TestPlansUseIndexesAndKeepOrder checks the order. In a UTF-8 database, byte order is the order of COLLATE
// "C". In another encoding the two orders may differ beyond ASCII. If two statements then wait for each
// other, the server rolls one of them back, and server.run retries it.
//
// For a row that exists, excluded.slot is the index of its entry in the parameters. The arrays are unnested
// in the SELECT list, where they advance together, because FROM would store their elements first.
const chargeSQL = clockSQL + `
INSERT INTO {table} AS r (prefix, key, slot, granted, {columns}, expires_at)
SELECT {prefix}, i.key, i.slot, i.granted, {fresh}
FROM (SELECT *, {grants} AS granted
	FROM (SELECT now, generate_subscripts($3::text[], 1) AS slot, unnest($3::text[]) AS key{values}
		FROM clock) i) i{from}{order}
ON CONFLICT (prefix, key) DO UPDATE SET (slot, granted, {columns}, expires_at) = (
	{step})
RETURNING slot::bigint, {granted}, (SELECT now FROM clock), {returned}`

// orderSQL sorts the entries of a charge by prefix and key.
const orderSQL = `
ORDER BY i.prefix COLLATE "C", i.key COLLATE "C"`

// OnPurpose begins the message with which a transaction fails, and which the server logs. Check casts the
// message to a number. The message is not a constant, because the planner would always compute the cast of a
// constant.
const OnPurpose = `pg_ratelimit fails this transaction on purpose, which is normal: `

// A charge of a transaction (Key.AllOrNothing) sets pg_ratelimit.short if a row grants less than requested.
// The last statement of the transaction, Check, then fails, which rolls the transaction back, see
// transaction.go in package engine.
const (
	grantedSQL    = `granted`
	allGrantedSQL = `CASE WHEN granted < ($4::bigint[])[slot]
	THEN granted * set_config('pg_ratelimit.short', '1', true)::bigint ELSE granted END`
	Check = `SELECT CASE current_setting('pg_ratelimit.short', true) WHEN '1' THEN ('` + OnPurpose +
		`a limit is used up' || left(current_setting('pg_ratelimit.short', true), 0))::int END`
)

// peekSQL reads the rows of keys. For a key without a row, it returns NULLs.
//
// On a small table, or without statistics, the server may plan a statement that reads rows as a scan of the
// whole table, and keep the plan while the table grows. findSQL prevents that: only the primary key returns
// rows in the order of key, and indexSQL, which runs before it in the same transaction, disables all other
// ways to get this order. Without sequential scans, the scan of the small processes table looks so expensive
// that the server would compile the statement, which takes 200 ms, so indexSQL also disables that. Statements
// that write are inserts: they find an existing row by its conflict in the index of the primary key.
const (
	indexSQL = `SELECT set_config('enable_sort', 'off', true), set_config('enable_seqscan', 'off', true),
	set_config('jit', 'off', true)`
	findSQL = `FROM {table} t WHERE t.prefix = u.prefix AND t.key >= u.key AND t.key <= u.key
	ORDER BY t.key LIMIT 1`
	peekSQL = clockSQL + `
SELECT u.slot, 0::bigint, (SELECT now FROM clock), {returned}
FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS u(prefix, key, slot)
	LEFT JOIN LATERAL (SELECT * ` + findSQL + `) r ON true`
)

// blankSQL begins a statement that changes the rows of keys. For a key without a row it inserts a blank row,
// which the next cleanup deletes. This package and the npm library decide on a blank row as on a missing row,
// because the window of a blank row ended long ago.
const blankSQL = clockSQL + `
INSERT INTO {table} AS r (prefix, key, slot, count, prev_count, window_start, expires_at)
SELECT i.prefix, i.key, i.slot, 0, 0, timestamptz '1800-01-01Z', timestamptz '1800-01-01Z'
FROM (SELECT now, generate_subscripts($3::text[], 1) AS slot, unnest($2::text[]) AS prefix,
	unnest($3::text[]) AS key FROM clock) i` + orderSQL + `
ON CONFLICT (prefix, key) DO UPDATE SET `

// refundSQL refunds cost, or charges it if it is below 0, see algorithm.Definition.Adjust. A settlement, and
// a refund of leased units, have a claim: a time in the window of the charge. A caller's refund has the claim
// 0, for which {claimed} is NULL.
const refundSQL = blankSQL + `{adjust} WHERE {adjust_where}`

// resetSQL makes rows blank, which restores the full quota.
const resetSQL = blankSQL +
	`(count, prev_count, window_start, tokens, last_refill, hits, remainder, expires_at) =
	(0, 0, excluded.window_start, NULL, NULL, NULL, NULL, excluded.expires_at){reset}`

// releaseSQL releases slots. $2 to $5 are arrays with an element for each release: the prefix, the key, the
// number of slots, and the first one. A row can have several releases. In a durable table, the commit waits
// for the disk, because after a crash of the server the slots could otherwise be back, and nobody would
// release them again. With SynchronousCommit it also waits for a synchronous standby, which could otherwise
// become the primary without the release. The statement passes the numbers of the slots negated. For a key
// without a row, it inserts the negated numbers, which are not slots of any process.
const releaseSQL = clockSQL + `
INSERT INTO {table} AS r (prefix, key, slots, expires_at)
SELECT u.prefix, u.key, array_agg(-u.first - i), timestamptz '1800-01-01Z'
FROM clock, unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[]) AS u(prefix, key, n, first),
	generate_series(0, u.n - 1) i GROUP BY 1, 2
ORDER BY u.prefix COLLATE "C", u.key COLLATE "C"
ON CONFLICT (prefix, key) DO UPDATE
SET slots = ARRAY(SELECT s FROM unnest(r.slots) s WHERE -s <> ALL (excluded.slots))`

// ledgerSQL adds settlements to the ledger. Its parameter is a list of objects, one for each settlement. A
// day that is more than 7 days off, by a wrong clock, is moved. It sets pg_ratelimit.settled to the numbers
// of those that were not there, and to NoSettlement, for the settleSQL that follow in the transaction.
const ledgerSQL = `WITH new AS (INSERT INTO {ledger} (day, id, time, user_id, key_id, ancestors, model, input,
	cache_read, cache_write, output, money, charges)
SELECT greatest(today - 7, least(today + 7, date 'epoch' + day::int)), id, clock_timestamp(),
	nullif(user_id, ''), nullif(key_id, 0), coalesce(ancestors, '{}'), nullif(model, ''), nullif(input, -1),
	nullif(cache_read, -1), nullif(cache_write, -1), nullif(output, -1), nullif(money, -1), charges
FROM jsonb_to_recordset($1::text::jsonb) AS u(day bigint, id uuid, user_id text, key_id bigint,
	ancestors text[], model text, input bigint, cache_read bigint, cache_write bigint, output bigint,
	money bigint, charges jsonb), (SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date AS today) t
ON CONFLICT DO NOTHING RETURNING id)
SELECT set_config('pg_ratelimit.settled', (array_agg(id) || '` + NoSettlement +
	`'::uuid)::text, true){prelude} FROM new`

// NoSettlement is the number of a release, which is not in the ledger.
const NoSettlement = "00000000-0000-0000-0000-000000000000"

// settleSQL settles on one row, $2 and $3, those of several settlements that are new: it charges the sum of
// their units (see algorithm.Settle), and ends their holds. The last four parameters are arrays with an
// element for each: its number, its units, and the session for which the request has held units, with these.
const settleSQL = clockSQL + `, new AS MATERIALIZED (SELECT units, s, held
	FROM unnest({ids}::uuid[], {units}, {sessions}, {holds}) AS u(id, units, s, held)
	WHERE id = ANY (current_setting('pg_ratelimit.settled')::uuid[]))
INSERT INTO {table} AS r (prefix, key, granted, {columns}, expires_at)
SELECT $2::text, $3::text, i.granted, {fresh}
FROM (SELECT now, least(sum(units), 2305843009213693952)::bigint AS granted
	FROM clock, new GROUP BY now) i{from}
ON CONFLICT (prefix, key) DO UPDATE SET (slot, granted, {columns}, expires_at) = (
	{step}), held = (SELECT array_agg(ARRAY[s, v]) FROM (SELECT s, sum(v)::bigint AS v
		FROM (SELECT r.held[i][1] AS s, r.held[i][2] AS v FROM generate_subscripts(r.held, 1) i
			UNION ALL SELECT s, -held FROM new) p GROUP BY s HAVING sum(v) > 0) p)`

// cleanupSQL deletes up to 1,000 rows of a prefix that expired at least $3 microseconds ago. The statement
// skips rows that a decision has locked, and never waits. It keeps rows with slots of requests in flight, and
// with units that they hold. In a process that holds nothing, it keeps all such rows, because the role may
// lack the right to read the processes table. The ORDER BY matches the index for cleanups, which the server
// uses because indexSQL runs before the statement.
const cleanupSQL = clockSQL + `, deleted AS (DELETE FROM {table} WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM {table}
	WHERE prefix = $2::text AND {free}
		AND expires_at <= (SELECT now FROM clock) - $3::bigint * interval '1 microsecond'
	ORDER BY expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED)) RETURNING 1)
SELECT count(*) FROM deleted`

// nextPrefixSQL returns the first prefix of a table after $1, in the order of the index.
const nextPrefixSQL = `SELECT prefix FROM {table} WHERE prefix > $1::text ORDER BY prefix LIMIT 1`
