package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sort"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// group holds the entries of one statement, and its parameters.
type group struct {
	statementKey
	entries   []*entry
	statement pgdb.Statement
	// preparation is indexSQL. It runs before a peek, and with a guard also before a take of slots, which
	// must read the table of processes after the guard has run.
	preparation pgdb.Statement
	failure     error // the reason why the statement cannot be sent, or nil
	single      bool  // the group has one entry, and takes no others
	slots       bool  // a take on limits InFlight

	// Memory for results, see readRows.
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

// write fills in the statement, and appends it to those of a pipeline, after the one that comes before it.
// One that cannot be sent is left out. settings are its first parameter, see clockSQL.
func (g *group) write(texts *statements, settings []int64, pipeline []*pgdb.Statement) []*pgdb.Statement {
	if g.failure != nil {
		g.statement = pgdb.Statement{Err: g.failure, Result: g.statement.Result}
		return pipeline
	}
	if g.kind == release {
		writeRelease(g, texts, settings)
		return append(pipeline, &g.statement)
	}
	entries := g.entries
	keys := g.keys[:0]
	n := g.n[:0]
	l := entries[0].view.Limit
	cost := entries[0].cost
	uniform := g.kind == take && !g.slots
	for _, e := range entries {
		keys = append(keys, e.id.Key)
		if e.view.Limit != l || e.cost != cost {
			uniform = false
		}
	}
	if uniform && len(entries) > 1 {
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
	key.uniform = uniform
	args := appendValues(g, append(g.statement.Args[:0], settings), uniform)
	g.statement = pgdb.Statement{SQL: texts.texts[key], Args: args, Result: g.statement.Result}
	if g.kind == peek || g.slots && texts.guarded {
		g.preparation = pgdb.Statement{SQL: texts.index, Joined: true, Result: g.preparation.Result}
		pipeline = append(pipeline, &g.preparation)
	}
	return append(pipeline, &g.statement)
}

// writeRelease fills in the statement of releases of slots.
func writeRelease(g *group, texts *statements, settings []int64) {
	var prefixes, keys []string
	var n, numbers []int64
	for _, e := range g.entries {
		prefixes = append(prefixes, e.id.Prefix)
		keys = append(keys, e.id.Key)
		n = append(n, e.n)
		numbers = append(numbers, e.firstSlot)
	}
	g.statement = pgdb.Statement{SQL: texts.texts[g.statementKey],
		Args: []any{settings, prefixes, keys, n, numbers}}
}

// appendValues appends the parameters that hold values of entries: arrays, or if the entries are uniform, the
// values of the first one.
func appendValues(g *group, args []any, uniform bool) []any {
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
		g.firsts = append(g.firsts, e.firstSlot)
		if uniform {
			break
		}
	}
	args = append(args, textArgument(g.prefixes, uniform), g.keys)
	switch g.kind {
	case refund:
		return append(args, g.cost, g.quotas, g.spans, g.events, g.claims)
	case take:
		args = append(args, g.n, argument(g.cost, uniform), argument(g.quotas, uniform),
			argument(g.spans, uniform))
		for _, p := range g.definition.SQL.Needs {
			switch p {
			case algorithm.EventsParameter:
				args = append(args, argument(g.events, uniform))
			case algorithm.UnitParameter:
				args = append(args, textArgument(g.units, uniform))
			case algorithm.TimeZoneParameter:
				args = append(args, textArgument(g.timeZones, uniform))
			case algorithm.AnchorParameter:
				args = append(args, argument(g.anchors, uniform))
			case algorithm.SlotParameter:
				args = append(args, g.firsts)
			}
		}
	}
	return args
}

// argument returns values as a parameter, or values[0] if all entries are uniform.
func argument(values []int64, uniform bool) any {
	if uniform {
		return values[0]
	}
	return values
}

// textArgument returns values as a parameter, or values[0] if all entries are uniform.
func textArgument(values []string, uniform bool) any {
	if uniform {
		return values[0]
	}
	return values
}

// calendarUnits are the units of date_trunc, by ratelimit.Calendar.
var calendarUnits = []string{"", "day", "week", "month", "year"}

// timeZoneOf returns the name of a limit's time zone in Postgres.
func timeZoneOf(l *ratelimit.Limit) string {
	if l.Zone == "" {
		return "UTC"
	}
	return l.Zone
}

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
	errBadValue = errors.New("ratelimit/postgres: a value in the statement was refused")
	errNoAnswer = errors.New("ratelimit/postgres: the server gave no answer for a key")
)

// read copies the statement's result, or its error, into the entries.
func (g *group) read() {
	err := g.statement.Err
	switch g.statement.Code {
	case pg.LockNotAvailable:
		err = errLocked
	case pg.Untranslatable:
		err = fmt.Errorf("%s: %w", pg.EncodingHint, err)
	}
	if len(g.entries) > 1 && pg.IsBadValue(g.statement.Code) {
		err = fmt.Errorf("%w: %w", errBadValue, err)
	}
	if g.allOrNothing && errors.Is(err, pgdb.ErrRolledBack) {
		err = nil // the rows say how much each row had room for
	}
	returnsRows := g.kind == take || g.kind == peek
	if returnsRows && err == nil {
		err = readRows(g)
	}
	for _, e := range g.entries {
		if err != nil {
			e.err = err
		} else if returnsRows && !e.answered {
			e.err = errNoAnswer
		}
	}
	if g.kind == take && err == nil {
		algorithm.PeekAll(g.views)
	}
}

// readRows reads the rows of a result into the entries.
func readRows(g *group) error {
	step := g.definition.SQL
	width := stateColumn + step.Width
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
			return pg.ErrColumns
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
	columns, err := pg.Columns(g.statement.Result)
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
		return pg.ErrColumns
	}
	if err := readCells(g, width); err != nil {
		return err
	}
	for i := range arrays {
		step.ReadArray(arrays[i], g.rows[i])
	}
	return nil
}
