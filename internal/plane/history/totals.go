package history

import "strings"

const (
	// otherHost replaces the host or the route of a request beyond the bounds below.
	otherHost = "(other)"

	maxHosts  = 100    // of a minute
	maxRoutes = 100    // of a minute
	maxCells  = 1000   // of a minute, then all further hosts are one
	mostCells = 4000   // of all minutes that wait
	mostUsage = 100000 // entries that wait
)

// cellKey names a row of rate_limit_metrics.
type cellKey struct {
	minute              int64 // since 1970
	prefix, host, route string
}

// cell holds the sums to add to a row of rate_limit_metrics.
type cell struct {
	of cellKey

	counts                                    []int64 // by OutcomeKind
	cost, fromMemory, fromLease, fromDatabase int64

	latency [bounds + 1]int64 // by bucket
}

// requestsOf returns the number of requests in cells.
func requestsOf(cells []*cell) int64 {
	n := int64(0)
	for _, c := range cells {
		for d, count := range c.counts {
			if OutcomeKind(d) != Shadow {
				n += count
			}
		}
	}
	return n
}

// all removes and returns everything that waits. Only a closing Writer calls it, as t is unusable
// afterwards.
func (t *totals) all() *parcel {
	p := &parcel{cells: t.cellsLeft, usage: t.usageLeft}
	for _, c := range t.cells {
		p.cells = append(p.cells, c)
	}
	for _, u := range t.usage {
		p.usage = append(p.usage, u)
	}
	return p
}

// minute counts what one minute has, for its bounds.
type minute struct {
	hosts  map[string]bool
	routes map[string]bool
	cells  map[cellKey]bool // up to maxCells, also those that are written already
}

// usageKey names a row of rate_limit_usage_hours. Its sums are also added to the row of the day in
// rate_limit_usage.
type usageKey struct {
	hour  int64 // since 1970
	user  string
	keyID int64
}

// usage holds the sums to add to these rows.
type usage struct {
	of usageKey

	requests, cost           int64
	refused, limited, denied int64
	last                     int64 // in microseconds since 1970
}

// totals holds the metrics and the usage that wait for the next batch. The Writer's mutex guards it.
type totals struct {
	cells   map[cellKey]*cell
	last    *cell // that of the last record
	minutes map[int64]*minute
	usage   map[usageKey]*usage

	// The next batches take these before anything of the maps.
	cellsLeft []*cell
	usageLeft []*usage
}

func newTotals() totals {
	return totals{cells: make(map[cellKey]*cell), minutes: make(map[int64]*minute),
		usage: make(map[usageKey]*usage)}
}

// cellOf returns the cell of a record, or nil if there are too many. The caller has checked the cell of
// the last record.
func (t *totals) cellOf(at int64, r *Record) *cell {
	k := cellKey{at, r.Prefix, r.Host, r.Route}
	if c := t.cells[k]; c != nil {
		return c
	}
	k.prefix = cleanText(k.prefix, maxText)
	k.host = cleanText(k.host, maxText)
	k.route = cleanText(k.route, maxText)
	m := t.minutes[at]
	if m == nil {
		if len(t.minutes) >= 3 {
			t.forgetMinutes(at)
		}
		m = &minute{hosts: make(map[string]bool), routes: make(map[string]bool),
			cells: make(map[cellKey]bool)}
		t.minutes[at] = m
	}
	if !m.hosts[k.host] && len(m.hosts) >= maxHosts {
		k.host = otherHost
	}
	if !m.routes[k.route] && len(m.routes) >= maxRoutes {
		k.route = otherHost
	}
	c := t.cells[k]
	if c == nil && len(m.cells) >= maxCells && !m.cells[k] {
		k.host = otherHost
		c = t.cells[k]
	}
	if c != nil {
		return c
	}
	if len(t.cells)+len(t.cellsLeft) >= mostCells {
		return nil
	}
	k.host = strings.Clone(k.host)
	k.prefix = strings.Clone(k.prefix)
	k.route = strings.Clone(k.route)
	c = &cell{of: k, counts: make([]int64, len(outcomeKinds))}
	t.cells[k] = c
	if k.host != otherHost {
		m.hosts[k.host] = true
	}
	if k.route != otherHost {
		m.routes[k.route] = true
	}
	if len(m.cells) < maxCells {
		m.cells[k] = true
	}
	return c
}

// forgetMinutes deletes the bounds of all minutes except those next to at.
func (t *totals) forgetMinutes(at int64) {
	for m := range t.minutes {
		if m < at-1 || m > at+1 {
			delete(t.minutes, m)
		}
	}
}

// usageOf returns the entry of a user in an hour, or nil if there are too many.
func (t *totals) usageOf(at int64, r *Record) *usage {
	k := usageKey{at, r.User, r.KeyID}
	if u := t.usage[k]; u != nil {
		return u
	}
	k.user = strings.Clone(cleanText(r.User, maxKey))
	u := t.usage[k]
	if u != nil {
		return u
	}
	if len(t.usage)+len(t.usageLeft) >= mostUsage {
		return nil
	}
	u = &usage{of: k}
	t.usage[k] = u
	return u
}

// collect moves the contents of the maps to cellsLeft and usageLeft, if those are empty.
func (t *totals) collect() {
	if len(t.cellsLeft) == 0 && len(t.cells) > 0 {
		t.cellsLeft = make([]*cell, 0, len(t.cells))
		for _, c := range t.cells {
			t.cellsLeft = append(t.cellsLeft, c)
		}
		t.cells = make(map[cellKey]*cell)
		t.last = nil
	}
	if len(t.usageLeft) == 0 && len(t.usage) > 0 {
		t.usageLeft = make([]*usage, 0, len(t.usage))
		for _, u := range t.usage {
			t.usageLeft = append(t.usageLeft, u)
		}
		t.usage = make(map[usageKey]*usage)
	}
}

// take removes and returns some of cellsLeft and usageLeft.
func (t *totals) take() ([]*cell, []*usage) {
	n := len(t.cellsLeft)
	if n > batchCells {
		n = batchCells
	}
	cells := t.cellsLeft[:n]
	t.cellsLeft = t.cellsLeft[n:]
	n = len(t.usageLeft)
	if n > batchUsage {
		n = batchUsage
	}
	entries := t.usageLeft[:n]
	t.usageLeft = t.usageLeft[n:]
	return cells, entries
}
