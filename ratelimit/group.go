package ratelimit

import (
	"bytes"
	"encoding/binary"
)

// group is the items of one statement, and its parameters: an array each, with
// an element an item.
type group struct {
	statementKey
	wave      int
	limit     *Limit // of its latest item
	items     []*item
	statement Statement

	step           *stepSQL
	width          int   // columns of its result: slot, granted, now, the state
	now            int64 // the time that the statement went by
	cells          []cell
	rows           []*row // those of the cells
	answerRow      func(columns [][]byte) error
	answerRows     func(rows []byte) error
	prefixes, keys []string
	numbers        [7][]int64
}

// The arrays of numbers.
const (
	itemN = iota
	itemCost
	itemQuota
	itemSpan
	itemEvents
	itemClaimed
	itemRoom
)

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
func (g *group) begin(key statementKey, wave int) {
	g.statementKey = key
	g.wave = wave
	g.now = 0
	g.step = algorithms[key.algorithm].sql
	g.width = stateColumn + g.step.width()
	g.items, g.prefixes, g.keys = g.items[:0], g.prefixes[:0], g.keys[:0]
	for i := range g.numbers {
		g.numbers[i] = g.numbers[i][:0]
	}
}

// write fills in the statement.
func (g *group) write(texts *statements, now int64) {
	for _, it := range g.items {
		g.prefixes = append(g.prefixes, it.id.prefix)
		g.keys = append(g.keys, it.id.key)
	}
	args := g.statement.Args[:0]
	args = append(args, nil, g.prefixes, g.keys)
	if now != 0 {
		args[0] = now
	}
	switch g.kind {
	case take:
		g.fillTake()
		args = append(args, g.numbers[itemN], g.numbers[itemCost], g.numbers[itemQuota], g.numbers[itemSpan])
		for _, p := range g.step.needs {
			args = append(args, g.need(p))
		}
	case refund:
		g.fillRefund()
		args = append(args, g.numbers[itemCost], g.numbers[itemQuota], g.numbers[itemSpan], g.numbers[itemEvents],
			g.numbers[itemClaimed], g.numbers[itemRoom])
	}
	g.statement = Statement{SQL: texts.steps[g.statementKey], Args: args}
	if g.kind == take || g.kind == peek {
		g.statement.Row = g.answerRow
		g.statement.Rows = g.answerRows
	}
}

func (g *group) fillTake() {
	n, cost, quota, span := g.numbers[itemN], g.numbers[itemCost], g.numbers[itemQuota], g.numbers[itemSpan]
	var of *Limit
	most, length := int64(0), int64(0)
	for _, it := range g.items {
		if it.limit != of {
			of = it.limit
			most = capacity(of)
			length = window(of)
		}
		n = append(n, it.n)
		cost = append(cost, it.cost)
		quota = append(quota, most)
		span = append(span, length)
	}
	g.numbers[itemN], g.numbers[itemCost], g.numbers[itemQuota], g.numbers[itemSpan] = n, cost, quota, span
}

func (g *group) fillRefund() {
	for _, it := range g.items {
		g.numbers[itemCost] = append(g.numbers[itemCost], it.cost)
		g.numbers[itemQuota] = append(g.numbers[itemQuota], capacity(it.limit))
		g.numbers[itemSpan] = append(g.numbers[itemSpan], window(it.limit))
		g.numbers[itemEvents] = append(g.numbers[itemEvents], it.limit.Events)
		g.numbers[itemClaimed] = append(g.numbers[itemClaimed], it.claim.at)
		g.numbers[itemRoom] = append(g.numbers[itemRoom], it.claim.room)
	}
}

// need is the array of a parameter that an algorithm needs besides.
func (g *group) need(p parameter) any {
	if p == eventsParameter {
		for _, it := range g.items {
			g.numbers[itemEvents] = append(g.numbers[itemEvents], it.limit.Events)
		}
		return g.numbers[itemEvents]
	}
	texts := make([]string, len(g.items))
	for i, it := range g.items {
		switch {
		case p == unitParameter:
			texts[i] = calendarUnits[it.limit.Calendar].sql
		case it.limit.Zone == "":
			texts[i] = "UTC"
		default:
			texts[i] = it.limit.Zone
		}
	}
	return texts
}
