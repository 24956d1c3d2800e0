package engine

import (
	"sort"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// group is the entries of one statement, and its parameters.
type group struct {
	statementKey
	entries   []*entry
	statement pgdb.Statement
	// of a look: indexSQL. With a guard, also of a take of slots: their processes are read as of after the guard
	before  pgdb.Statement
	failure error // why the statement cannot be sent, or nil
	only    bool  // the first entry has the statement to itself
	slots   bool  // a take on limits InFlight

	// Memory for results, see result.go.
	cells []algorithm.Cell
	rows  []*algorithm.Row
	views []*algorithm.View

	// Memory for parameters: arrays with an element for each entry.
	keys                        []string
	n                           []int64
	prefixes                    []string
	cost, quotas, spans, events []int64
	claims                      []int64  // of refunds
	units, timeZones            []string // on the calendar
	anchors                     []int64
	firsts                      []int64 // of slots

	sorted []*entry // memory for entries
}

// write fills in the statement, and appends what runs to those of a pipeline. settings are its first parameter, see
// clockSQL.
func (g *group) write(texts *statements, settings []int64, pipeline []*pgdb.Statement) []*pgdb.Statement {
	if g.failure != nil {
		g.statement = pgdb.Statement{Err: g.failure, Result: g.statement.Result}
		return pipeline
	}
	if g.kind >= firstOwn {
		writeOwn(g, texts, settings)
		return append(pipeline, &g.statement)
	}
	entries := g.entries
	keys := g.keys[:0]
	n := g.n[:0]
	l := entries[0].view.Limit
	cost := entries[0].cost
	alike := g.kind == take && !g.slots
	for _, e := range entries {
		keys = append(keys, e.id.Key)
		if e.view.Limit != l || e.cost != cost {
			alike = false
		}
	}
	if alike && len(entries) > 1 {
		// The keys are different, because a row occurs once in a statement.
		sort.Strings(keys)
		sorted := g.sorted[:0]
		sorted = append(sorted, entries...)
		for _, e := range entries {
			sorted[sort.SearchStrings(keys, e.id.Key)] = e
		}
		g.sorted = entries
		g.entries = sorted
		entries = sorted
	}
	for _, e := range entries {
		n = append(n, e.n)
	}
	g.keys = keys
	g.n = n
	key := g.statementKey
	key.alike = alike
	args := g.statement.Args[:0]
	args = append(args, settings)
	if alike {
		args = append(args, l.Prefix, keys, n, cost, l.Capacity(), l.Window.Microseconds())
		if len(g.definition.SQL.Needs) > 0 {
			args = appendNeeds(g, args, l)
		}
	} else {
		args = appendArrays(g, args)
	}
	g.statement = pgdb.Statement{SQL: texts.texts[key], Args: args, Result: g.statement.Result}
	if g.kind == look || g.slots && texts.guarded {
		g.before = pgdb.Statement{SQL: texts.index, Joined: true, Result: g.before.Result}
		pipeline = append(pipeline, &g.before)
	}
	return append(pipeline, &g.statement)
}

// writeOwn is write for one of ownStatements.
func writeOwn(g *group, texts *statements, settings []int64) {
	var prefixes, keys []string
	var n, numbers []int64
	for _, e := range g.entries {
		prefixes = append(prefixes, e.id.Prefix)
		keys = append(keys, e.id.Key)
		n = append(n, e.n)
		numbers = append(numbers, e.first)
	}
	g.statement = pgdb.Statement{SQL: texts.texts[g.statementKey], Args: []any{settings, prefixes, keys, n, numbers}}
}

// appendNeeds appends the parameters that the algorithm needs besides, of one limit.
func appendNeeds(g *group, args []any, l *ratelimit.Limit) []any {
	for _, p := range g.definition.SQL.Needs {
		switch p {
		case algorithm.EventsParameter:
			args = append(args, l.Events)
		case algorithm.UnitParameter:
			args = append(args, calendarUnits[l.Calendar])
		case algorithm.TimeZoneParameter:
			args = append(args, timeZoneOf(l))
		case algorithm.AnchorParameter:
			args = append(args, l.Anchor)
		}
	}
	return args
}

// appendArrays appends the parameters that differ from entry to entry.
func appendArrays(g *group, args []any) []any {
	g.prefixes = g.prefixes[:0]
	g.cost = g.cost[:0]
	g.quotas = g.quotas[:0]
	g.spans = g.spans[:0]
	g.events = g.events[:0]
	g.claims = g.claims[:0]
	g.units = g.units[:0]
	g.timeZones = g.timeZones[:0]
	g.anchors = g.anchors[:0]
	g.firsts = g.firsts[:0]
	for _, e := range g.entries {
		l := e.view.Limit
		g.prefixes = append(g.prefixes, l.Prefix)
		g.cost = append(g.cost, e.cost)
		g.quotas = append(g.quotas, l.Capacity())
		g.spans = append(g.spans, l.Window.Microseconds())
		g.events = append(g.events, l.Events)
		g.claims = append(g.claims, e.claim)
		g.units = append(g.units, calendarUnits[l.Calendar])
		g.timeZones = append(g.timeZones, timeZoneOf(l))
		g.anchors = append(g.anchors, l.Anchor)
		g.firsts = append(g.firsts, e.first)
	}
	args = append(args, g.prefixes, g.keys)
	switch g.kind {
	case refund:
		return append(args, g.cost, g.quotas, g.spans, g.events, g.claims)
	case take:
		args = append(args, g.n, g.cost, g.quotas, g.spans)
		for _, p := range g.definition.SQL.Needs {
			switch p {
			case algorithm.EventsParameter:
				args = append(args, g.events)
			case algorithm.UnitParameter:
				args = append(args, g.units)
			case algorithm.TimeZoneParameter:
				args = append(args, g.timeZones)
			case algorithm.AnchorParameter:
				args = append(args, g.anchors)
			case algorithm.SlotParameter:
				args = append(args, g.firsts)
			}
		}
	}
	return args
}

// calendarUnits are the units of date_trunc, by ratelimit.Calendar.
var calendarUnits = []string{"", "day", "week", "month", "year"}

// timeZoneOf is the time zone of a limit as Postgres knows it.
func timeZoneOf(l *ratelimit.Limit) string {
	if l.Zone == "" {
		return "UTC"
	}
	return l.Zone
}
