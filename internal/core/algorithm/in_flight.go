package algorithm

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// InFlight admits a hit while
//
//	slots + cost ≤ Events
//
// A hit of cost 3 holds three slots until its request ends. Each slot is a number that its process uses again
// only after about 2^32 others, so releasing a slot twice has no effect.
//
// State: slots, an array of these numbers. The high 32 bits are the name of the process that holds the slot.
// The process has a row in rate_limit_processes, which package process renews. The low
// bits are a counter of the process. When the row of a process expires, the slots of the process are free,
// and the next hit removes them. The name of a process is the time of its start, in seconds since 2000. A
// process with a name younger than the lifetime of a row counts without a row, because the snapshot of a
// statement may be older than the row. Negative numbers are not slots: they record the release of a slot that
// was not in the row.
//
// The time of a release is not known in advance, so RetryAfter and Reset are estimates. expires_at is a day
// ahead and changes rarely. A row with slots is not deleted.

func init() {
	define(ratelimit.InFlight, Definition{
		Charge: chargeInFlight, Adjust: adjustInFlight, Peek: peekInFlight, Passes: passesInFlight,
		SQL: &inFlightSQL,
	})
}

const (
	// inFlightRetry is RetryAfter in microseconds.
	inFlightRetry = 1000000
	// inFlightLinger is the maximum time in microseconds from the last hit to expires_at. The minimum is half
	// of it.
	inFlightLinger = 24 * 3600 * 1000000
)

func chargeInFlight(l *ratelimit.Limit, r *Row, now, n, cost int64) int64 {
	granted := fit(l.Events-r.Slots, n, cost)
	if granted == 0 {
		return 0
	}
	r.Slots += granted * cost
	if r.Expires < now+inFlightLinger/2 {
		r.Expires = now + inFlightLinger
	}
	return granted
}

func adjustInFlight(l *ratelimit.Limit, r *Row, now, cost, at int64) {
	if cost > 0 { // a settlement does not change slots
		r.Slots = larger(0, r.Slots-cost)
	}
}

func peekInFlight(l *ratelimit.Limit, r *Row, now int64) (free, reset int64) {
	if r.Slots == 0 {
		return l.Events, now
	}
	return l.Events - r.Slots, now + inFlightRetry
}

func passesInFlight(l *ratelimit.Limit, r *Row, now, cost int64) int64 { return now + inFlightRetry }

const (
	// aliveSQL returns an array of the processes with unexpired rows, and the negated names of young ones
	// with other rows; {processes} is the placeholder for their table. youngSQL returns the newest name for
	// which the snapshot must contain a row. Both use the start of the statement, which is not later than its
	// snapshot, so that a wait for a lock does not age rows. Upper bounds exclude times from a clock that was
	// temporarily ahead: rows more than 10 seconds ahead, and names more than an hour ahead. Names run ahead
	// of the clock while many processes start.
	aliveSQL = `(SELECT coalesce(array_agg(CASE WHEN seen BETWEEN statement_timestamp() - interval '10 s'
		AND statement_timestamp() + interval '10 s' THEN process ELSE -process END), '{}') FROM {processes}
		WHERE seen >= statement_timestamp() - interval '10 s'
		OR process > extract(epoch FROM statement_timestamp())::bigint - 946684810)::bigint[]`
	youngSQL = `(SELECT extract(epoch FROM statement_timestamp())::bigint - 946684810)`
)

// isAliveSQL returns a condition that holds if a process is alive. alive and young are aliveSQL and youngSQL,
// or columns with their values.
func isAliveSQL(process, alive, young string) string {
	return process + " = ANY (" + alive + ") OR " + process + " - " + young + " BETWEEN 1 AND 3610 AND -" +
		process + " <> ALL (" + alive + ")"
}

var (
	// LiveSQL tests whether the row has a slot of a process that is alive.
	LiveSQL = "EXISTS (SELECT " + liveSlotsSQL + ")"
	// liveSlotsSQL selects from such slots.
	liveSlotsSQL = "FROM unnest(slots) s WHERE " + isAliveSQL("(s >> 32)", aliveSQL, youngSQL)
)

var inFlightSQL = SQL{
	Columns:      "slots",
	Returned:     "cardinality(slots)::bigint",
	PeekReturned: "(SELECT count(*) " + liveSlotsSQL + ")",
	Needs:        "first",
	Fresh: "ARRAY(SELECT generate_series({first}, {first} + i.granted * {cost} - 1)), i.now + " +
		"interval '1 day'",
	Step: `SELECT excluded.ord, granted, live || excluded.slots[:(granted * {cost})::int],
		CASE WHEN r.expires_at < excluded.expires_at - interval '12 hours' THEN excluded.expires_at
			ELSE r.expires_at END
	FROM (SELECT *, CASE WHEN ` + isAliveSQL("(excluded.slots[1] >> 32)", "alive", "young") + `
		THEN greatest(0, least({most}, ({quota} - cardinality(live)) / {cost}))
			ELSE 0 END AS granted
	FROM (SELECT *, ARRAY(SELECT s FROM unnest(r.slots) s
		WHERE ` + isAliveSQL("(s >> 32)", "alive", "young") + `) AS live
	FROM (SELECT ` + aliveSQL + ` AS alive, ` + youngSQL + ` AS young OFFSET 0) a OFFSET 0) b OFFSET 0) c`,
	Reset:       ", slots = NULL",
	Adjust:      "count = r.count", // only ratelimit.Hold releases slots
	AdjustWhere: "false",
	Read: func(cells []Cell, width int, rows []*Row) {
		for i, r := range rows {
			r.Slots = cells[i*width].Value
		}
	},
}
