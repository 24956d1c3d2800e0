package algorithm

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A limit that Reserves admits a hit while
//
//	used + held < Events
//
// where used is what its algorithm counts. The hit then holds its whole cost, which may be more than what is
// left. A settlement later charges the real cost (Settle), and ends the hold. What becomes free fills the
// lack first, so that a quota is used to its end, and not beyond it by one hit for each unit that becomes
// free.
//
// State: remainder, see SettlingSQL, and held, in SQL an array of pairs, each of a process's name and the
// units that its running requests hold. A name is a row of rate_limit_processes, as for InFlight, and its
// pair counts while it is alive. A reservation changes nothing else in a row that exists. In a new row it
// begins a window.
//
// An algorithm whose limits can reserve has a second Definition, which defineReserving makes from the first.

// heldRetry is RetryAfter, in microseconds, while the quota that is left is only held.
const heldRetry = 1000000

// unlimited returns a limit that counts like l, and admits any cost.
func unlimited(l *ratelimit.Limit) *ratelimit.Limit {
	anyCost := Unlimited(l)
	anyCost.Reserves = false
	return anyCost
}

// Unlimited returns a limit that reserves like l, and always admits.
func Unlimited(l *ratelimit.Limit) *ratelimit.Limit {
	anyCost := *l
	anyCost.Events = maxCount
	return &anyCost
}

// Settle charges units, even beyond the quota, and ends the hold of held units. units are too many by rest
// thousandths of a unit, from 0 to 999, which Remainder keeps until they are a unit.
func Settle(l *ratelimit.Limit, r *Row, now, units, rest, held int64) {
	start := r.Start
	anyCost := unlimited(l)
	Of(anyCost).Charge(anyCost, r, now, units, 1)
	if r.Start != start {
		r.Remainder = 0
	}
	r.Remainder -= rest
	r.Count += r.Remainder / 1000
	r.Remainder %= 1000
	r.Held = larger(0, r.Held-held)
}

// SettlingSQL returns the step of Settle in SQL, for the definition of a limit that does not reserve: Fresh
// and Step, in which granted is the number of units. The first column is remainder, from -999 to 0: the
// thousandths of a unit by which the count of its window is too much, negated. A settlement has {rest} more.
func SettlingSQL(d *Definition) (fresh, step string) {
	all := strings.NewReplacer("{quota}", maxCountSQL, "{cost}", "1")
	return "nullif(-{rest}, 0), " + all.Replace(d.SQL.Fresh), `SELECT ord, granted, nullif(rest % 1000, 0),
		count + rest / 1000, prev, start, ends
	FROM (SELECT s.*, coalesce(CASE WHEN start = r.window_start THEN r.remainder END, 0) - {rest} AS rest
	FROM (` + all.Replace(d.SQL.Step) + `) s(ord, granted, count, prev, start, ends) OFFSET 0) s`
}

// defineReserving makes the definition of limits that reserve from that of their algorithm, or of
// calendarWindow. Only init functions call it.
func defineReserving(a ratelimit.Algorithm) {
	d := definitions[a]
	peek := func(l *ratelimit.Limit, r *Row, now int64) (free, reset int64) {
		free, reset = d.Peek(l, r, now)
		return free - r.Held, reset
	}
	d.reserving = &Definition{
		Name:     d.Name + " that reserves",
		Reserves: true,
		Charge: func(l *ratelimit.Limit, r *Row, now, n, cost int64) int64 {
			if r.Start == 0 { // begin a window
				r.Count -= d.Charge(unlimited(l), r, now, 1, 1)
			}
			granted := int64(0)
			for free, _ := peek(l, r, now); granted < n && free > 0; granted++ {
				r.Held = smaller(maxCount, r.Held+cost)
				free -= cost
			}
			return granted
		},
		Adjust: d.Adjust,
		Peek:   peek,
		PeekAll: func(views []*View) {
			d.PeekAll(views)
			for _, v := range views {
				v.Free -= v.Row.Held
			}
		},
		Passes: func(l *ratelimit.Limit, r *Row, now, cost int64) int64 {
			if free, _ := d.Peek(l, r, now); free > 0 {
				return now + heldRetry
			}
			return d.Passes(l, r, now, 1)
		},
		SQL: reservingSQL(d.SQL),
	}
	complete(d.reserving)
}

const (
	maxCountSQL = "2305843009213693952"

	// sumSQL returns the sum of the units v in the rows that follow.
	sumSQL = "SELECT least(coalesce(sum(v), 0), " + maxCountSQL + ")::bigint FROM "
	// heldPairsSQL returns the pairs of a column held.
	heldPairsSQL = "(SELECT held[i][1] AS s, held[i][2] AS v FROM generate_subscripts(held, 1) i) p"
)

// LiveHeldSQL returns the units that running requests hold in a row, and HoldersSQL of how many processes.
var (
	LiveHeldSQL  = "(" + sumSQL + livePairsSQL + ")"
	HoldersSQL   = "(SELECT count(*) FROM " + livePairsSQL + ")"
	livePairsSQL = heldPairsSQL + " WHERE v > 0 AND (" + isAliveSQL("s", aliveSQL, youngSQL) + ")"
)

// reservingSQL returns the SQL of limits that reserve, from that of their algorithm. sums has, for n
// reservations, the sum of the first 0, 1 … n of them: so many pass as there are sums below what is left. The
// step of the algorithm tells what is left: the number of hits of cost 1 that it would grant. As a row grants
// nothing to a name that has ended, a statement that arrives late holds nothing.
func reservingSQL(base *SQL) *SQL {
	s := *base
	s.Columns = "held, " + base.Columns
	s.Returned = "CASE WHEN held IS NULL THEN 0 WHEN array_length(held, 1) = 1 THEN held[1][2] ELSE (" +
		sumSQL + heldPairsSQL + ") END, " + base.Returned
	s.PeekReturned = LiveHeldSQL + ", " + base.Returned
	s.Needs = "first sums " + base.Needs
	s.Reset = ", held = NULL"
	s.Grants = "CASE WHEN (sums::bigint[])[n] < {quota} THEN n " +
		"ELSE (SELECT count(*) FROM unnest((sums::bigint[])[:n]) p WHERE p < {quota}) END"
	s.Fresh = "CASE WHEN i.granted > 0 THEN ARRAY[ARRAY[{first}, (i.sums::bigint[])[i.granted + 1]]] END, " +
		strings.ReplaceAll(base.Fresh, "{cost}", "0")
	left := strings.NewReplacer("{most}", "{quota}", "{cost}", "1").Replace(base.Step)
	// Almost all rows have at most one pair, which needs no query.
	s.Step = `SELECT excluded.ord, granted, CASE WHEN granted = 0 THEN live
		WHEN live IS NULL THEN ARRAY[ARRAY[{first}, sums[granted + 1]]]
		WHEN array_length(live, 1) = 1 AND live[1][1] = {first}
			THEN ARRAY[ARRAY[{first}, live[1][2] + sums[granted + 1]]]
		ELSE (SELECT array_agg(ARRAY[s, v]) FROM (SELECT s, sum(v)::bigint AS v
			FROM (SELECT live[i][1] AS s, live[i][2] AS v
			FROM generate_subscripts(live, 1) i UNION ALL SELECT {first}, sums[granted + 1]) p
			GROUP BY s) p) END,
		r.count, r.prev_count, r.window_start, r.expires_at
	FROM (SELECT *, CASE WHEN NOT (` + isAliveSQL("{first}", "alive", "young") + `) THEN 0
		WHEN sums[cardinality(sums) - 1] < free THEN cardinality(sums) - 1
		ELSE (SELECT count(*) FROM unnest(sums[:cardinality(sums) - 1]) p WHERE p < free) END AS granted
	FROM (SELECT *, (SELECT granted FROM (` + left + `) s) - CASE WHEN live IS NULL THEN 0
		WHEN array_length(live, 1) = 1 THEN live[1][2]
		ELSE (` + sumSQL + `(SELECT live[i][2] AS v FROM generate_subscripts(live, 1) i) p) END AS free
	FROM (SELECT alive, young, sums, CASE WHEN r.held IS NULL THEN NULL
		WHEN array_length(r.held, 1) = 1 AND r.held[1][2] > 0
			AND (` + isAliveSQL("r.held[1][1]", "alive", "young") + `) THEN r.held
		ELSE (SELECT array_agg(ARRAY[s, v]) FROM (SELECT r.held[i][1] AS s,
			r.held[i][2] AS v FROM generate_subscripts(r.held, 1) i) p
		WHERE v > 0 AND (` + isAliveSQL("s", "alive", "young") + `)) END AS live
	FROM (SELECT ` + aliveSQL + ` AS alive, ` + youngSQL + ` AS young, {sums}::bigint[] AS sums
	OFFSET 0) a OFFSET 0) b OFFSET 0) c OFFSET 0) d`
	s.Read = func(cells []Cell, width int, rows []*Row) {
		for i, r := range rows {
			r.Held = cells[i*width].Value
		}
		base.Read(cells[1:], width, rows)
	}
	return &s
}
