package ratelimit

import (
	"strconv"
	"strings"
)

// stepSQL is an algorithm's step in SQL: what differs from one algorithm to the
// next in the statements below. Every statement decides many items at once.
type stepSQL struct {
	// columns are the state, as the table names them. returned is what a
	// statement returns for them; "" is the columns. It has something else
	// where NULL is usual, since rows without NULLs are read faster.
	columns  string
	returned string

	// readExpires adds expires_at to what a statement returns.
	readExpires bool

	// needs are the parameters that the step reads besides n, cost, quota (the
	// Limit's Capacity) and span (its Window in microseconds).
	needs []parameter

	// fresh are the columns' values and then expires_at for a key without a
	// row, after granted hits. Known are i (an item), clock.now, and what is
	// in from, which goes on after them in FROM.
	fresh string
	from  string

	// step is a query that returns slot, granted, the columns and expires_at
	// for a key that has a row. Known are r (the row as it is), excluded (what
	// fresh would insert: no row admits more than excluded.granted), and the
	// item's parameters by their names in braces: {cost}, {quota} … What several
	// places need is computed once, in a query in FROM; OFFSET 0 keeps the
	// planner from writing it out at each of them. Every operator costs time,
	// also where it is not reached: the server prepares them all each time.
	step string

	// refund are the assignments and the conditions that give cost back. Known
	// are r, i (cost, quota, span, events, claimed, room) and clock.now.
	refund string

	// scan reads the state out of a result: that of the first row is at the
	// start of cells, of the next width cells further. scanLong reads it where
	// it is one column that is no cell.
	scan     func(cells []cell, width int, rows []*row)
	scanLong func(column []byte, r *row)
}

// width is how many columns of state a statement returns.
func (s *stepSQL) width() int {
	n := strings.Count(s.columns, ",") + 1
	if s.readExpires {
		n++
	}
	return n
}

// parameter is an array among a statement's arguments, with a value an item.
type parameter struct {
	name    string
	sqlType string
}

var (
	eventsParameter = parameter{"events", "bigint"}
	unitParameter   = parameter{"unit", "text"}
	zoneParameter   = parameter{"zone", "text"}
)

// firstNeed is the number of the first parameter that an algorithm needs.
const firstNeed = 8

// kind is what a statement does to its items.
type kind uint8

const (
	take kind = iota
	peek
	refund
	reset
)

// The clock is read once a statement: the server's, unless $1 gives the
// microseconds since the Unix epoch. Where the commit need not wait for the
// disk, saying so inside the statement spares a transaction block.
const (
	clockSQL = `WITH clock AS MATERIALIZED (SELECT coalesce(timestamptz 'epoch' + $1::bigint * interval '1 microsecond', clock_timestamp()) AS now{commit})`
	asyncSQL = `, set_config('synchronous_commit', 'off', true)`
)

// takeSQL decides n hits of equal cost on each key. Every writer takes its row
// locks in the order of prefix and key, so no two can wait for each other. A row
// that exists knows its item by excluded.slot, its place in the parameters. In
// the SELECT list the arrays go in step, and need no store as they do in FROM.
const takeSQL = clockSQL + `
INSERT INTO {table} AS r (prefix, key, slot, granted, {columns}, expires_at)
SELECT i.prefix, i.key, i.slot, i.granted, {fresh}
FROM clock, (SELECT *, least(n, quota / cost) AS granted
	FROM (SELECT generate_subscripts($2::text[], 1) AS slot, unnest($2::text[]) AS prefix, unnest($3::text[]) AS key,
		unnest($4::bigint[]) AS n, unnest($5::bigint[]) AS cost, unnest($6::bigint[]) AS quota, unnest($7::bigint[]) AS span{needs}) u) i{from}
ORDER BY i.prefix COLLATE "C", i.key COLLATE "C"
ON CONFLICT (prefix, key) DO UPDATE SET (slot, granted, {columns}, expires_at) = (
	{step})
RETURNING slot::bigint, granted, (SELECT now FROM clock), {returned}`

// peekSQL reads the rows of the keys that have one.
const peekSQL = clockSQL + `
SELECT u.slot, 0::bigint, (SELECT now FROM clock), {returned}
FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS u(prefix, key, slot) LEFT JOIN {table} r USING (prefix, key)`

// refundSQL gives cost back to the keys that have a row.
const refundSQL = clockSQL + `, i AS MATERIALIZED (
	SELECT prefix, key, u.cost, u.quota, u.span, u.events, u.room,
		timestamptz 'epoch' + nullif(u.claimed, 0) * interval '1 microsecond' AS claimed
	FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[])
	AS u(prefix, key, cost, quota, span, events, claimed, room) JOIN {table} r USING (prefix, key)
	ORDER BY prefix COLLATE "C", key COLLATE "C" FOR UPDATE OF r)
UPDATE {table} AS r SET {refund}
AND r.prefix = i.prefix AND r.key = i.key`

// resetSQL forgets keys: their quota is full again.
const resetSQL = clockSQL + `, i AS MATERIALIZED (
	SELECT prefix, key FROM unnest($2::text[], $3::text[]) AS u(prefix, key) JOIN {table} r USING (prefix, key)
	ORDER BY prefix COLLATE "C", key COLLATE "C" FOR UPDATE OF r)
DELETE FROM {table} AS r USING i, clock WHERE clock.now IS NOT NULL AND r.prefix = i.prefix AND r.key = i.key`

// Names of the two tables, which the npm library pg-ratelimit shares.
const (
	ephemeralTable = "rate_limit_ephemeral"
	durableTable   = "rate_limit_durable"
)

// statements holds every text that a store runs, by what it depends on.
type statements struct {
	steps   map[statementKey]string
	cleanup map[string]string // by table
}

type statementKey struct {
	kind      kind
	algorithm Algorithm
	durable   bool
	sync      bool
}

// newStatements writes them all out.
func newStatements() *statements {
	s := &statements{steps: map[statementKey]string{}, cleanup: map[string]string{}}
	for a := range algorithms {
		step := algorithms[a].sql
		for _, durable := range []bool{false, true} {
			for _, sync := range []bool{false, true} {
				k := statementKey{take, Algorithm(a), durable, sync}
				s.steps[k] = writeOut(takeSQL, step, durable, sync)
				k.kind = peek
				s.steps[k] = writeOut(peekSQL, step, durable, true)
				k.kind = refund
				s.steps[k] = writeOut(refundSQL, step, durable, sync)
				k.kind = reset
				s.steps[k] = writeOut(resetSQL, step, durable, sync)
			}
		}
	}
	s.cleanup[ephemeralTable] = writeOut(cleanupSQL, &stepSQL{}, false, true)
	s.cleanup[durableTable] = writeOut(cleanupSQL, &stepSQL{}, true, false)
	return s
}

// writeOut fills a statement's blanks.
func writeOut(text string, step *stepSQL, durable, sync bool) string {
	table, commit := ephemeralTable, ""
	if durable {
		table = durableTable
		if !sync {
			commit = asyncSQL
		}
	}
	refund := strings.Replace(step.refund, "WHERE", "FROM i, clock WHERE", 1)
	text = strings.NewReplacer("{step}", step.step, "{refund}", refund, "{fresh}", step.fresh, "{from}", step.from).Replace(text)
	needs := ""
	values := []string{"{cost}", element(5, "bigint"), "{quota}", element(6, "bigint"), "{span}", element(7, "bigint")}
	for i, p := range step.needs {
		needs += ", unnest(" + array(firstNeed+i, p.sqlType) + ") AS " + p.name
		values = append(values, "{"+p.name+"}", element(firstNeed+i, p.sqlType))
	}
	returned := step.columns
	if step.returned != "" {
		returned = step.returned
	}
	if step.readExpires {
		returned += ", expires_at"
	}
	text = strings.NewReplacer(values...).Replace(text)
	text = strings.NewReplacer("{table}", table, "{columns}", step.columns, "{returned}", returned, "{commit}", commit, "{needs}", needs).Replace(text)
	return text
}

// array is a parameter that holds a value an item.
func array(number int, sqlType string) string {
	return "$" + strconv.Itoa(number) + "::" + sqlType + "[]"
}

// element is the value for the row at hand in an array of parameters.
func element(number int, sqlType string) string {
	return "(" + array(number, sqlType) + ")[excluded.slot]"
}
