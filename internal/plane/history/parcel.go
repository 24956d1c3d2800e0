package history

import (
	"strconv"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	batchRows  = 1000
	batchCells = 250
	batchUsage = 2000
)

// parcel is a batch of rows, metrics and usage to write. It does not change until its result is known.
type parcel struct {
	number int64 // 0 until it is sent
	rows   []auditRow
	cells  []*cell
	usage  []*usage
}

// load is the size of parcels.
type load struct {
	rows           int
	bytes          int64 // text of the rows
	decisions      int64 // that the rows stand for
	requests, uses int64 // of the metrics, and of the usage
}

// add adds the size of a parcel to l if sign is 1, and subtracts it if sign is -1.
func (l *load) add(p *parcel, sign int64) {
	l.rows += int(sign) * len(p.rows)
	for i := range p.rows {
		l.bytes += sign * p.rows[i].bytes
		l.decisions += sign * p.rows[i].count
	}
	l.requests += sign * requestsOf(p.cells)
	for _, u := range p.usage {
		l.uses += sign * u.requests
	}
}

// parts splits a batch by kind, and one of a single kind into halves. It returns nil if there is
// nothing to split.
func (p *parcel) parts() []*parcel {
	if len(p.rows) > 0 && len(p.cells)+len(p.usage) > 0 {
		return []*parcel{{rows: p.rows}, {cells: p.cells, usage: p.usage}}
	}
	if len(p.cells) > 0 && len(p.usage) > 0 {
		return []*parcel{{cells: p.cells}, {usage: p.usage}}
	}
	r, c, u := len(p.rows)/2, len(p.cells)/2, len(p.usage)/2
	if r+c+u == 0 {
		return nil
	}
	return []*parcel{{rows: p.rows[:r], cells: p.cells[:c], usage: p.usage[:u]},
		{rows: p.rows[r:], cells: p.cells[c:], usage: p.usage[u:]}}
}

const (
	beginSQL = "SELECT rate_limit_begin_batch($1, $2, $3, $4, $5, $6)"
	auditSQL = "SELECT rate_limit_record_audit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, " +
		"$14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)"
	metricsSQL = "SELECT rate_limit_record_metrics($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, " +
		"$14, $15, $16)"
	usageSQL = "SELECT rate_limit_record_usage($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
)

// statements returns the transaction that writes a batch. written and dropped are the totals including
// it.
func (w *Writer) statements(p *parcel, written, dropped int64) []*pgdb.Statement {
	all := []*pgdb.Statement{{
		SQL: beginSQL, Args: []any{w.name, w.settings.Node, w.settings.Region, p.number, written, dropped},
		Joined: true,
	}}
	if len(p.rows) > 0 {
		all = append(all,
			&pgdb.Statement{SQL: auditSQL, Args: auditArgs(p.rows, w.settings.Node, w.settings.Region),
				Joined: true})
	}
	if len(p.cells) > 0 {
		all = append(all, &pgdb.Statement{SQL: metricsSQL, Args: metricsArgs(p.cells, w.settings.Region),
			Joined: true})
	}
	if len(p.usage) > 0 {
		all = append(all, &pgdb.Statement{SQL: usageSQL, Args: usageArgs(p.usage), Joined: true})
	}
	all[len(all)-1].Joined = false
	return all
}

// auditArgs returns the parameters of auditSQL.
func auditArgs(rows []auditRow, node, region string) []any {
	n := len(rows)
	texts := make([][]string, 13)
	for i := range texts {
		texts[i] = make([]string, n)
	}
	numbers := make([][]int64, 9)
	for i := range numbers {
		numbers[i] = make([]int64, n)
	}
	for i := range rows {
		x := &rows[i]
		texts[0][i] = x.outcome.String()
		texts[1][i] = x.reason
		texts[2][i] = x.prefix
		texts[3][i] = x.limit
		texts[4][i] = x.key
		texts[5][i] = x.user
		texts[6][i] = x.tier
		texts[7][i] = x.address
		texts[8][i] = x.host
		texts[9][i] = x.method
		texts[10][i] = x.path
		texts[11][i] = x.also
		texts[12][i] = x.weight
		numbers[0][i] = x.micros
		numbers[1][i] = x.cost
		numbers[2][i] = x.count
		numbers[3][i] = x.quota
		numbers[4][i] = x.left
		numbers[5][i] = x.keyID
		numbers[6][i] = x.retry
		numbers[7][i] = x.duration
		numbers[8][i] = x.status
	}
	args := []any{node, region, numbers[0]}
	for i := 0; i < 12; i++ {
		args = append(args, texts[i])
	}
	for i := 1; i < 9; i++ {
		args = append(args, numbers[i])
	}
	return append(args, texts[12])
}

// decisionArgs holds, for each OutcomeKind, the number of the parameter of metricsSQL with its counts.
var decisionArgs = []int{1, 2, 3, 4, 6, 5}

// metricsArgs returns the parameters of metricsSQL.
func metricsArgs(cells []*cell, region string) []any {
	n := len(cells)
	prefixes := make([]string, n)
	hosts := make([]string, n)
	routes := make([]string, n)
	latencies := make([]string, n)
	numbers := make([][]int64, 11)
	for i := range numbers {
		numbers[i] = make([]int64, n)
	}
	var text []byte
	for i, c := range cells {
		prefixes[i] = c.of.prefix
		hosts[i] = c.of.host
		routes[i] = c.of.route
		numbers[0][i] = c.of.minute
		for d, at := range decisionArgs {
			numbers[at][i] = c.counts[d]
		}
		numbers[7][i] = c.cost
		numbers[8][i] = c.fromMemory
		numbers[9][i] = c.fromLease
		numbers[10][i] = c.fromDatabase
		text = append(text[:0], '{')
		for b, count := range usedBuckets(c.latency[:]) {
			if b > 0 {
				text = append(text, ',')
			}
			text = strconv.AppendInt(text, count, 10)
		}
		latencies[i] = string(append(text, '}'))
	}
	args := []any{region, numbers[0], prefixes, hosts, routes}
	for i := 1; i < 9; i++ {
		args = append(args, numbers[i])
	}
	return append(args, latencies, numbers[9], numbers[10])
}

// usedBuckets returns the buckets up to the last one that is not empty.
func usedBuckets(buckets []int64) []int64 {
	n := len(buckets)
	for n > 0 && buckets[n-1] == 0 {
		n--
	}
	return buckets[:n]
}

// usageArgs returns the parameters of usageSQL.
func usageArgs(entries []*usage) []any {
	n := len(entries)
	users := make([]string, n)
	numbers := make([][]int64, 9)
	for i := range numbers {
		numbers[i] = make([]int64, n)
	}
	for i, u := range entries {
		users[i] = u.of.user
		numbers[0][i] = u.of.hour / 24
		numbers[1][i] = u.of.keyID
		numbers[2][i] = u.requests
		numbers[3][i] = u.cost
		numbers[4][i] = u.refused
		numbers[5][i] = u.last
		numbers[6][i] = u.of.hour
		numbers[7][i] = u.limited
		numbers[8][i] = u.denied
	}
	return []any{numbers[0], users, numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6],
		numbers[7], numbers[8]}
}
