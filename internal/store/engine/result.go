package engine

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/results"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/internal/store/own"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// A row of a result is slot, granted, the time, and then the columns of the state.
const (
	slotColumn = iota
	grantedColumn
	timeColumn
	stateColumn
)

// cellSize is the length of a column of eight bytes in a Statement's Result.
const cellSize = 12

var (
	errColumns  = results.ErrColumns
	errNoAnswer = errors.New("ratelimit/postgres: the server gave no answer for a key")
)

// read copies the statement's result, or its error, into the entries.
func (g *group) read() {
	err := g.statement.Err
	if g.statement.Code == sqlstate.LockNotAvailable {
		err = own.ErrLocked
	}
	if g.allOrNothing && errors.Is(err, pgdb.ErrRolledBack) {
		err = nil // the rows say how much each row had room for
	}
	asks := g.kind == take || g.kind == look
	if asks && err == nil {
		err = readRows(g)
	}
	for _, e := range g.entries {
		if err != nil {
			e.err = err
		} else if asks && !e.answered {
			e.err = errNoAnswer
		}
	}
	if g.kind == take && err == nil {
		algorithm.LookAll(g.views)
	}
}

// readRows reads the rows of a result into the entries.
func readRows(g *group) error {
	step := g.definition.SQL
	width := stateColumn + step.Width()
	if step.ReadArray != nil || len(g.statement.Result) != g.statement.Rows*width*cellSize {
		return readRowsCarefully(g, width)
	}
	// No column is NULL, so all of them are decoded by one call. One after the other, a request in
	// Traefik with a key of its own takes 1.1 times the processor time, and 625 allocations instead of
	// 510 (go test -run xxx -bench 'Interpreted$/Postgres,_many_keys' -benchtime 5000x . in
	// integration, in turns).
	n := g.statement.Rows * width
	if n > cap(g.cells) {
		g.cells = make([]algorithm.Cell, n)
	}
	g.cells = g.cells[:n]
	if err := binary.Read(bytes.NewReader(g.statement.Result), binary.BigEndian, g.cells); err != nil {
		return err
	}
	return readCells(g, width)
}

// readCells reads rows that are in cells.
func readCells(g *group, width int) error {
	cells := g.cells
	entries := g.entries
	last := int64(len(entries))
	rows := g.rows[:0]
	views := g.views[:0]
	now := int64(0)
	if len(cells) > timeColumn {
		now = cells[timeColumn].Value + algorithm.PostgresEpoch // the same in all rows
	}
	for at := 0; at < len(cells); at += width {
		slot := cells[at].Value
		if slot < 1 || slot > last {
			return errColumns
		}
		e := entries[slot-1]
		e.answered = true
		e.granted = cells[at+grantedColumn].Value
		e.view.Now = now
		rows = append(rows, &e.view.Row)
		views = append(views, &e.view)
	}
	g.rows = rows
	g.views = views
	if g.definition.SQL.Read != nil && len(rows) > 0 {
		g.definition.SQL.Read(cells[stateColumn:], width, rows)
	}
	return nil
}

// readRowsCarefully reads rows with columns of any length.
func readRowsCarefully(g *group, width int) error {
	step := g.definition.SQL
	g.cells = g.cells[:0]
	var arrays [][]byte // of each row the state, if it is an array
	columns, err := results.Columns(g.statement.Result)
	if err != nil {
		return err
	}
	for column, value := range columns {
		c := algorithm.Cell{}
		if len(value) == 8 {
			c.Length = 8
			c.Value = int64(binary.BigEndian.Uint64(value))
		}
		g.cells = append(g.cells, c)
		if step.ReadArray != nil && column%width == stateColumn {
			arrays = append(arrays, value)
		}
	}
	if len(g.cells) != g.statement.Rows*width {
		return errColumns
	}
	if err := readCells(g, width); err != nil {
		return err
	}
	for i := range arrays {
		step.ReadArray(arrays[i], g.rows[i])
	}
	return nil
}
