package engine

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
)

// $1 is the clockParameter. The statement itself sets the lock timeout and synchronous_commit of its
// transaction, so that it needs no explicit transaction.
const (
	clockSQL = `WITH clock AS MATERIALIZED (SELECT coalesce(timestamptz 'epoch'
	+ nullif(($1::bigint[])[1], 0) * interval '1 microsecond', clock_timestamp()) AS now{settings})`
	lockSQL  = `, set_config('lock_timeout', ($1::bigint[])[2]::text, true)`
	asyncSQL = `, set_config('synchronous_commit', 'off', true)`
	diskSQL  = `, set_config('synchronous_commit', 'local', true)` // waits for the disk, and for no standby
)

// clockParameter returns the first parameter of statements. now is the time in microseconds since the Unix
// epoch; with 0, each statement reads the server's clock, once. lockWait is the lock timeout, at least 1 ms,
// because 0 would be no bound.
func clockParameter(now int64, lockWait time.Duration) []int64 {
	wait := lockWait.Milliseconds()
	if wait < 1 {
		wait = 1
	}
	return []int64{now, wait}
}

// takeSQL decides n hits of equal cost on each key. It has two forms. If all entries have the same limit and
// cost, limit and cost are scalar parameters, and the caller sorts the keys in byte order. Otherwise each
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
const takeSQL = clockSQL + `
INSERT INTO {table} AS r (prefix, key, slot, granted, {columns}, expires_at)
SELECT {prefix}, i.key, i.slot, i.granted, {fresh}
FROM (SELECT *, least(n, {quota} / {cost}) AS granted
	FROM (SELECT now, generate_subscripts($3::text[], 1) AS slot, unnest($3::text[]) AS key{values}
		FROM clock) i) i{from}{order}
ON CONFLICT (prefix, key) DO UPDATE SET (slot, granted, {columns}, expires_at) = (
	{step})
RETURNING slot::bigint, {granted}, (SELECT now FROM clock), {returned}`

// orderSQL sorts the entries of a take by prefix and key.
const orderSQL = `
ORDER BY i.prefix COLLATE "C", i.key COLLATE "C"`

// onPurpose begins the message with which a transaction fails, and which the server logs. checkSQL casts the
// message to a number. The message is not a constant, because the planner would always compute the cast of a
// constant.
const onPurpose = `pg_ratelimit fails this transaction on purpose, which is normal: `

// A take of a transaction (allOrNothing) sets pg_ratelimit.short if a row grants less than requested. The
// last statement of the transaction, checkSQL, then fails, which rolls the transaction back, see
// transaction.go.
const (
	grantedSQL    = `granted`
	allGrantedSQL = `CASE WHEN granted < ($4::bigint[])[slot]
	THEN granted * set_config('pg_ratelimit.short', '1', true)::bigint ELSE granted END`
	checkSQL = `SELECT CASE current_setting('pg_ratelimit.short', true) WHEN '1' THEN ('` + onPurpose +
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

// cleanupSQL deletes up to 1,000 rows of a prefix that expired at least $3 microseconds ago. The statement
// skips rows that a decision has locked, and never waits. It keeps rows with slots of requests in flight. In
// a process without limits InFlight, it keeps all rows with slots, because the role may lack the right to
// read the processes table. The ORDER BY matches the index for cleanups, which the server uses because
// indexSQL runs before the statement.
const cleanupSQL = clockSQL + `, deleted AS (DELETE FROM {table} WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM {table}
	WHERE prefix = $2::text AND {no_slots}
		AND expires_at <= (SELECT now FROM clock) - $3::bigint * interval '1 microsecond'
	ORDER BY expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED)) RETURNING 1)
SELECT count(*) FROM deleted`

// nextPrefixSQL returns the first prefix of a table after $1, in the order of the index.
const nextPrefixSQL = `SELECT prefix FROM {table} WHERE prefix > $1::text ORDER BY prefix LIMIT 1`

// firstValue is the number of the first parameter of parametersOf. Parameter 1 has the settings (see
// clockSQL), 2 the prefixes, and 3 the keys.
const firstValue = 4

// claimedSQL is a time in the window of the refunded charge, or NULL.
const claimedSQL = `(timestamptz 'epoch'
	+ nullif(($8::bigint[])[excluded.slot], 0) * interval '1 microsecond')`

// Names of the tables. The npm library pg-ratelimit shares the first two.
const (
	ephemeralTable = "rate_limit_ephemeral"
	durableTable   = "rate_limit_durable"
	processesTable = "rate_limit_processes"
)

func tableName(durable bool) string {
	if durable {
		return durableTable
	}
	return ephemeralTable
}

// ownTables returns the default tables, by their names.
func ownTables() map[string]Table {
	return map[string]Table{ephemeralTable: {Name: ephemeralTable}, durableTable: {Name: durableTable},
		processesTable: {Name: processesTable}}
}

// statementKey has the properties that determine a statement's SQL.
type statementKey struct {
	kind         statementKind
	definition   *algorithm.Definition
	durable      bool
	sync         bool // the commit waits for the disk
	allOrNothing bool // a take of a transaction that fails if a row grants less
	uniform      bool // a take of entries with one limit and one cost
}

// templates are the statements by statementKind.
var templates = []string{takeSQL, peekSQL, refundSQL, resetSQL, releaseSQL}

// statementText is the text of a statement.
type statementText struct {
	sql        string
	parameters []algorithm.Parameter // the parameters from firstValue on
}

// statements writes the texts of the statements that a store runs.
type statements struct {
	tables  map[string]Table // by the names of ownTables; does not change
	index   string           // indexSQL with the guard of one table: the tables of a shard move together
	guarded bool

	mu    sync.Mutex                      // guards texts
	texts map[statementKey]*statementText // the texts that were written before
}

// newStatements returns the statements on tables.
func newStatements(tables map[string]Table) *statements {
	s := &statements{texts: map[statementKey]*statementText{}, tables: tables, index: indexSQL,
		guarded: tables[ephemeralTable].Guard != ""}
	if s.guarded {
		s.index += guardedSQL + tables[ephemeralTable].Guard
	}
	return s
}

// parametersOf returns the parameters that hold the values of a statement's entries.
func parametersOf(key statementKey) []algorithm.Parameter {
	cost := algorithm.Parameter{Name: "cost", Type: "bigint"}
	quota := algorithm.Parameter{Name: "quota", Type: "bigint"}
	span := algorithm.Parameter{Name: "span", Type: "bigint"}
	n := algorithm.Parameter{Name: "n", Type: "bigint"}
	switch key.kind {
	case take:
		return append([]algorithm.Parameter{n, cost, quota, span}, key.definition.SQL.Needs...)
	case refund:
		return []algorithm.Parameter{cost, quota, span, algorithm.EventsParameter,
			{Name: "claim", Type: "bigint"}}
	case release:
		return []algorithm.Parameter{n, algorithm.SlotParameter}
	}
	return nil
}

// write writes the text of a statement.
func (s *statements) write(key statementKey) *statementText {
	parameters := parametersOf(key)
	var inserted, updated []string // the values of an entry, for a new row and for one that exists
	values := ""
	for i, p := range parameters {
		parameter := "$" + strconv.Itoa(firstValue+i) + "::" + p.Type
		ofNew, ofOld := parameter, parameter
		if !key.uniform || p.Name == "n" {
			values += ", unnest(" + parameter + "[]) AS " + p.Name
			ofNew, ofOld = "i."+p.Name, "("+parameter+"[])[excluded.slot]"
		}
		inserted = append(inserted, "{"+p.Name+"}", ofNew)
		updated = append(updated, "{"+p.Name+"}", ofOld)
	}
	prefix, order := "$2::text", ""
	if !key.uniform {
		values += ", unnest($2::text[]) AS prefix"
		prefix, order = "i.prefix", orderSQL
	}
	granted := grantedSQL
	if key.allOrNothing {
		granted = allGrantedSQL
	}
	step := key.definition.SQL
	returned := step.Columns
	if step.Returned != "" {
		returned = step.Returned
	}
	if key.kind == peek && step.PeekReturned != "" {
		returned = step.PeekReturned
	}
	if step.ReadExpires {
		returned += ", expires_at"
	}
	t := s.tables[tableName(key.durable)]
	settings := lockSQL + t.Guard // the lock timeout also bounds the guard
	switch {
	case key.kind == peek:
		settings = ""
	case key.kind == release && key.durable && !key.sync:
		settings = diskSQL + settings
	default:
		settings = commitSQL(key.sync) + settings
	}
	sql := strings.NewReplacer("{fresh}", step.Fresh, "{from}", step.From).Replace(templates[key.kind])
	sql = strings.NewReplacer(append(inserted, "{prefix}", prefix, "{values}", values, "{order}", order,
		"{granted}", granted)...).Replace(sql)
	update := strings.NewReplacer(append(updated, "{now}", "(SELECT now FROM clock)",
		"{claimed}", claimedSQL)...)
	sql = strings.NewReplacer("{columns}", step.Columns, "{returned}", returned, "{settings}", settings,
		"{reset}", step.Reset, "{step}", update.Replace(step.Step), "{adjust}", update.Replace(step.Adjust),
		"{adjust_where}", update.Replace(step.AdjustWhere)).Replace(sql)
	return &statementText{sql: s.named(sql, t), parameters: parameters}
}

// cleanup returns cleanupSQL for a table. slots is set if the process has used limits InFlight.
func (s *statements) cleanup(durable, slots bool) string {
	none := "coalesce(slots, '{}') = '{}'"
	if slots {
		none = "(slots IS NULL OR NOT " + algorithm.LiveSQL + ")"
	}
	return s.named(strings.NewReplacer("{settings}", commitSQL(false), "{no_slots}", none).
		Replace(cleanupSQL), s.tables[tableName(durable)])
}

// guardedSQL precedes a guard in a statement without lockSQL, and bounds the guard's wait for locks.
const guardedSQL = `, set_config('lock_timeout', '200', true)`

// named fills in the names of a table and of the processes table.
func (s *statements) named(text string, t Table) string {
	return strings.NewReplacer("{table}", t.Name, "{processes}", s.tables[processesTable].Name).Replace(text)
}

// commitSQL returns the setting that turns off the commit's wait for the disk and for standbys, or "" if the
// commit has to wait. A commit that changes only an unlogged table waits, too, if the server has written to
// its log for another reason, such as the pruning of a page of a catalog.
func commitSQL(sync bool) string {
	if sync {
		return ""
	}
	return asyncSQL
}
