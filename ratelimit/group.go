package ratelimit

import (
	"bytes"
	"encoding/binary"
)

// group is the items of one statement, and its parameters: an array each, with
// an element an item.
type group struct {
	statementKey
	items     []*item
	statement Statement

	step       *stepSQL
	width      int // columns of its result: slot, granted, now, the state
	cells      []cell
	rows       []*row // those of the cells
	answerRow  func(columns [][]byte) error
	answerRows func(rows []byte) error

	keys           []string
	n, cost        []int64
	claimed, rooms []int64 // of refunds

	// What items have from their limits; more of it than there are items, if
	// all had the limit one.
	one                   Limit
	prefixes              []string
	quotas, spans, events []int64
	units, zones          []string // on the calendar
}

func newGroup() *group {
	g := &group{}
	g.answerRow = func(columns [][]byte) error {
		if len(columns) != g.width {
			return errColumns
		}
		g.cells = appendCells(g.cells[:0], columns)
		if err := answer(g, g.cells); err != nil {
			return err
		}
		if g.step.scanLong != nil {
			g.step.scanLong(columns[stateColumn], g.rows[0])
		}
		return nil
	}
	g.answerRows = func(rows []byte) error {
		n := len(rows) / cellSize
		if len(rows) != n*cellSize {
			return errColumns
		}
		if n > cap(g.cells) {
			g.cells = make([]cell, n)
		}
		cells := g.cells[:n]
		if err := binary.Read(bytes.NewReader(rows), binary.BigEndian, cells); err != nil {
			return err
		}
		return answer(g, cells)
	}
	return g
}

// begin empties the group for a statement.
func (g *group) begin(key statementKey) {
	if g.step == nil || g.statementKey != key {
		g.statementKey = key
		g.step = algorithms[key.algorithm].sql
		g.width = stateColumn + g.step.width()
	}
	g.items = g.items[:0]
}

// write fills in the statement.
func (g *group) write(texts *statements, now int64) {
	items := g.items
	keys := g.keys[:0]
	n := g.n[:0]
	cost := g.cost[:0]
	one := items[0].limit
	alike := true
	for _, it := range items {
		keys = append(keys, it.id.key)
		n = append(n, it.n)
		cost = append(cost, it.cost)
		if it.limit != one {
			alike = false
		}
	}
	g.keys = keys
	g.n = n
	g.cost = cost
	if !alike || len(g.prefixes) < len(items) || g.one != *one {
		writeLimits(g, alike)
	}
	end := len(items)
	args := g.statement.Args[:0]
	args = append(args, nil, g.prefixes[:end], keys)
	if now != 0 {
		args[0] = now
	}
	switch g.kind {
	case take:
		args = append(args, n, cost, g.quotas[:end], g.spans[:end])
		if g.step.needs != nil {
			args = appendNeeds(g, args)
		}
	case refund:
		args = appendRefund(g, args)
	}
	g.statement = Statement{SQL: texts.steps[g.statementKey], Args: args}
	if g.kind == take || g.kind == peek {
		g.statement.Row = g.answerRow
		g.statement.Rows = g.answerRows
	}
}

// writeLimits writes what items have from their limits. Where all have the one
// that those of the statement before had, it is there already, and only what is
// missing is added.
func writeLimits(g *group, alike bool) {
	if !alike || g.one != *g.items[0].limit {
		g.prefixes = g.prefixes[:0]
		g.quotas = g.quotas[:0]
		g.spans = g.spans[:0]
		g.events = g.events[:0]
		g.units = g.units[:0]
		g.zones = g.zones[:0]
		g.one = Limit{}
		if alike {
			g.one = *g.items[0].limit
		}
	}
	for i := len(g.prefixes); i < len(g.items); i++ {
		l := g.items[i].limit
		g.prefixes = append(g.prefixes, l.Prefix)
		g.quotas = append(g.quotas, capacity(l))
		g.spans = append(g.spans, window(l))
		g.events = append(g.events, l.Events)
		zone := l.Zone
		if zone == "" {
			zone = "UTC"
		}
		g.units = append(g.units, calendarUnits[l.Calendar].sql)
		g.zones = append(g.zones, zone)
	}
}

// appendNeeds appends the parameters that the algorithm needs besides.
func appendNeeds(g *group, args []any) []any {
	end := len(g.items)
	for _, p := range g.step.needs {
		switch p {
		case eventsParameter:
			args = append(args, g.events[:end])
		case unitParameter:
			args = append(args, g.units[:end])
		case zoneParameter:
			args = append(args, g.zones[:end])
		}
	}
	return args
}

// appendRefund appends the parameters of a refund.
func appendRefund(g *group, args []any) []any {
	g.claimed = g.claimed[:0]
	g.rooms = g.rooms[:0]
	for _, it := range g.items {
		g.claimed = append(g.claimed, it.claim.at)
		g.rooms = append(g.rooms, it.claim.room)
	}
	end := len(g.items)
	return append(args, g.cost, g.quotas[:end], g.spans[:end], g.events[:end], g.claimed, g.rooms)
}
