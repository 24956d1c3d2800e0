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
// source of rows returns the elements of the arrays in turn, and is joined only with single rows: the clock,
// and the window, which all entries then share.
// TestPlansUseIndexesAndKeepOrder checks the order. In a UTF-8 database, byte order is the order of COLLATE
// "C". In another encoding the two orders may differ beyond ASCII. If two statements then wait for each
// other, the server rolls one of them back, and server.run retries it.
//
// For a row that exists, excluded.ord is the index of its entry in the parameters. The arrays are unnested
// in the SELECT list, where they advance together, because FROM would store their elements first.
const (
	chargeSQL = clockSQL + insertSQL + `
RETURNING ord::bigint, {granted}, (SELECT now FROM clock), {returned}`
	insertSQL = `{once}
INSERT INTO {table} AS r (prefix, key, ord, granted, {columns}, expires_at)
SELECT {prefix}, i.key, i.ord, i.granted, {fresh}
FROM (SELECT *, {grants} AS granted
	FROM (SELECT now, generate_subscripts($3::text[], 1) AS ord, unnest($3::text[]) AS key{values}
		FROM clock) i) i{from}{order}
ON CONFLICT (prefix, key) DO UPDATE SET (ord, granted, {columns}, expires_at) = (
	{step})`
)

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
	allGrantedSQL = `CASE WHEN granted < ($4::bigint[])[ord]
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
// that the server would compile the statement, which takes 200 ms, so indexSQL also disables that. It makes
// the statement fail where row level security would hide rows. Statements
// that write are inserts: they find an existing row by its conflict in the index of the primary key.
const (
	indexSQL = `SELECT set_config('enable_sort', 'off', true), set_config('enable_seqscan', 'off', true),
	set_config('jit', 'off', true), set_config('row_security', 'off', true)`
	findSQL = `FROM {table} t WHERE t.prefix = u.prefix AND t.key >= u.key AND t.key <= u.key
	ORDER BY t.key LIMIT 1`
	peekSQL = clockSQL + `
SELECT u.ord, 0::bigint, (SELECT now FROM clock), {returned}
FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS u(prefix, key, ord)
	LEFT JOIN LATERAL (SELECT * ` + findSQL + `) r ON true`
)

// blankSQL begins a statement that changes the rows of keys. For a key without a row it inserts a blank row,
// which the next cleanup deletes. This package and the npm library decide on a blank row as on a missing row,
// because the window of a blank row ended long ago.
const blankSQL = clockSQL + `
INSERT INTO {table} AS r (prefix, key, ord, count, prev_count, window_start, expires_at)
SELECT i.prefix, i.key, i.ord, 0, 0, timestamptz '1800-01-01Z', timestamptz '1800-01-01Z'
FROM (SELECT now, generate_subscripts($3::text[], 1) AS ord, unnest($2::text[]) AS prefix,
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

// partsSQL has the columns of a batch.Line with numbers of tokens and searches.
const partsSQL = "input, cache_read, cache_write, cache_write_1h, output, audio_input, audio_cache_read, " +
	"audio_output, image_input, image_output, search, estimated_input, estimated_output"

// ledgerSQL adds $2 settlements to the ledger. $3 is a list of objects, one for each, whose first line fills
// the columns. A day that is more than 7 days off, by a wrong clock, is moved. For the settleSQL that follow
// in the transaction, it returns and sets pg_ratelimit.settled: to the time if all settlements are new, and
// to "" if none is. Otherwise they fail, and the caller settles each by itself.
const ledgerSQL = clockSQL + `, new AS (INSERT INTO {table} (day, id, time, user_id, key_id, ancestors, tier,
	answered, lines, charges, model, price, price_valid, {parts}, estimated_money, money, remainder)
SELECT greatest(today - 7, least(today + 7, date 'epoch' + day::int)), id, now,
	nullif(user_id, ''), nullif(key_id, 0), coalesce(ancestors, '{}'), tier, answered,
	nullif(lines - 0, '[]'), charges, nullif(model, ''), price, price_valid, {parts}, estimated_money,
	ceil(money), nullif((money - ceil(money)) * 1000, 0)
FROM clock, jsonb_to_recordset($3::text::jsonb) AS u(day bigint, id uuid, user_id text, key_id bigint,
	ancestors text[], tier text, answered text, lines jsonb, charges jsonb),
	jsonb_to_record(lines -> 0) AS l(model text, price text, price_valid tstzrange, {typed},
		estimated_money numeric, money numeric),
	(SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date AS today) t
ON CONFLICT DO NOTHING RETURNING id)
SELECT set_config('pg_ratelimit.settled', CASE count(*) WHEN $2::bigint
	THEN (SELECT (date_part('epoch', now) * 1000000)::bigint::text FROM clock) WHEN 0 THEN ''
	ELSE '` + OnPurpose + `a settlement is repeated' END, true) FROM new`

// settleSQL settles on rows, at the time of the rows of the ledger: it charges n units, even beyond the
// quota, and ends what requests hold for the process first, as endsSQL says. A new row holds nothing. Almost
// all others have one pair, which needs no query.
const (
	settleSQL = `WITH clock AS MATERIALIZED (SELECT timestamptz 'epoch'
	+ current_setting('pg_ratelimit.settled')::bigint * interval '1 microsecond' AS now{prelude}
	WHERE current_setting('pg_ratelimit.settled') <> '')` + insertSQL + `{ends}`
	endsSQL = `, held = CASE WHEN r.held IS NULL THEN NULL
	WHEN array_length(r.held, 1) = 1 AND r.held[1][1] = {first}
		THEN CASE WHEN r.held[1][2] > {held} THEN ARRAY[ARRAY[{first}, r.held[1][2] - {held}]] END
	ELSE (SELECT array_agg(ARRAY[s, v]) FROM (SELECT r.held[i][1] AS s, r.held[i][2]
			- CASE WHEN r.held[i][1] = {first} THEN {held} ELSE 0 END AS v
		FROM generate_subscripts(r.held, 1) i) p WHERE v > 0) END`
)

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
