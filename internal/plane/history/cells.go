package history

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// The numbers of a cell, by their index.
const (
	cellTime = iota // in microseconds since 1970
	cellKeyID
	cellRequests
	cellShadow
	cellSettled
	cellFromMemory
	cellFromLease
	cellFromDatabase
	cellLast     // in microseconds since 1970
	cellAdmitted // the first of outcome.Words
	cellNumbers  = cellAdmitted + int(outcome.Count)
)

var metrics = newTable(&table{
	function: "rate_limit_record_metrics", shared: []string{"region"},
	numbers: append([]string{
		cellTime: "time", cellKeyID: "key_id", cellRequests: "requests", cellShadow: "shadow",
		cellSettled: "settled", cellFromMemory: "from_memory", cellFromLease: "from_lease",
		cellFromDatabase: "from_database", cellLast: "last_request",
	}, outcome.Words...),
	texts: []string{"user_id", "prefix", "limit_name", "unit", "endpoint", "durations"},
})

const (
	// overflowName replaces the user and the endpoint of requests beyond maxMinuteCells.
	overflowName = "(other)"

	maxMinuteCells  = 10000 // of one minute; further combinations share the cells of overflowName
	maxWaitingCells = 50000 // of all minutes
)

// cellKey identifies a row of rate_limit_metrics within a minute.
type cellKey struct {
	keyID                  int64
	user, prefix, endpoint string
	unit                   string
}

// cell holds the sums to add to the rows of a minute, its hour and its day.
type cell struct {
	minute    int64 // in minutes since 1970
	key       cellKey
	isOther   bool // the user and the endpoint are overflowName
	numbers   [cellNumbers]int64
	durations []int64 // the numbers of decisions by bucket, up to the last one that is not 0
}

// arrayText makes an array literal of a printed slice.
var arrayText = strings.NewReplacer("[", "{", " ", ",", "]", "}")

// row returns the values of a cell in the order of the table metrics.
func (c *cell) row() tableRow {
	n := &c.numbers
	n[cellTime] = c.minute * 60000000
	n[cellKeyID] = c.key.keyID
	n[cellRequests] = c.requests()
	prefix, limit := SplitPrefix(c.key.prefix)
	durations := arrayText.Replace(fmt.Sprint(c.durations)) // native, in the interpreter faster than a loop
	texts := []string{c.key.user, prefix, limit, c.key.unit, c.key.endpoint, durations}
	return tableRow{numbers: n[:], texts: texts}
}

// requests returns the number of requests. Records of shadow rules do not count, because each of their
// requests also has a record with its own outcome.
func (c *cell) requests() int64 {
	n := int64(0)
	for i := range outcome.Words {
		n += c.numbers[cellAdmitted+i]
	}
	return n
}

// minute holds the cells of one minute.
type minute struct {
	cells   map[cellKey]*cell // waiting
	counted map[cellKey]bool  // the keys of up to maxMinuteCells cells, including written ones
}

// cellSet holds the metrics that wait for a parcel. The Writer's mutex guards it.
type cellSet struct {
	minutes  map[int64]*minute
	lastCell *cell // the cell of the last record of AddBatch, or nil if that cell was taken
	waiting  int   // the number of waiting cells
}

func newCellSet() cellSet { return cellSet{minutes: make(map[int64]*minute)} }

// cellOf returns the cell of a key in a minute, which number counts since 1970, or nil if too many cells
// wait.
func (t *cellSet) cellOf(number int64, k cellKey) *cell {
	m := t.minutes[number]
	if m == nil {
		if len(t.minutes) >= 3 {
			t.endMinutes(number)
		}
		m = &minute{cells: make(map[cellKey]*cell), counted: make(map[cellKey]bool)}
		t.minutes[number] = m
	}
	if c := m.cells[k]; c != nil {
		return c
	}
	k.user = CleanText(k.user, maxKey)
	k.prefix = CleanText(k.prefix, maxText)
	k.endpoint = CleanText(k.endpoint, maxText)
	isOther := len(m.counted) >= maxMinuteCells && !m.counted[k]
	if isOther {
		k.keyID = 0
		k.user = overflowName
		k.endpoint = overflowName
	}
	if c := m.cells[k]; c != nil {
		return c
	}
	if t.waiting >= maxWaitingCells {
		return nil
	}
	k.user = strings.Clone(k.user)
	k.prefix = strings.Clone(k.prefix)
	k.endpoint = strings.Clone(k.endpoint)
	c := &cell{minute: number, key: k, isOther: isOther}
	m.cells[k] = c
	t.waiting++
	if !isOther {
		m.counted[k] = true
	}
	return c
}

// endMinutes deletes the minutes without waiting cells, except the minute number and its two neighbors, to
// which proxies may still add.
func (t *cellSet) endMinutes(number int64) {
	for i, m := range t.minutes {
		if (i < number-1 || i > number+1) && len(m.cells) == 0 {
			delete(t.minutes, i)
		}
	}
}

// add adds the actual cost of a request.
func (c *cell) add(settled int64) {
	c.numbers[cellSettled] += settled
	if c.numbers[cellSettled] < 0 {
		c.numbers[cellSettled] = math.MaxInt64 // clients can cause an overflow by their costs
	}
}

// addCharges adds the charges of a request that passed to the cell of each limit. c is the cell of the
// request itself.
func (t *cellSet) addCharges(c *cell, r *Record) {
	for i := range r.Charged {
		h := &r.Charged[i]
		if h.Peek || h.Independent || h.Cost < 1 || h.Limit.Algorithm == ratelimit.InFlight {
			continue
		}
		target := c
		if h.Limit.Prefix != r.Prefix {
			target = t.cellOf(c.minute, cellKey{r.KeyID, r.User, h.Limit.Prefix, r.Endpoint, h.Limit.Unit})
			if target == nil {
				continue
			}
			if target.numbers[cellLast] < c.numbers[cellLast] {
				target.numbers[cellLast] = c.numbers[cellLast]
			}
		}
		if i >= len(r.CostPending) || !r.CostPending[i] {
			target.add(h.Cost)
		}
	}
}

// RealCost describes the actual cost of a hit. Prefix and Unit are those of the hit's limit. Time, User,
// KeyID and Endpoint have the values of the request's Record.
type RealCost struct {
	Time             time.Time
	User             string
	KeyID            int64
	Prefix, Endpoint string
	Unit             string
	Units            int64 // 0 or more
}

// SetCost records the actual cost of a hit for which Record.CostPending was true. After Close, SetCost does
// nothing.
func SetCost(w *Writer, s *RealCost) {
	micros := w.micros(s.Time)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	c := w.cells.cellOf(micros/60000000, cellKey{s.KeyID, s.User, s.Prefix, s.Endpoint, s.Unit})
	if c == nil {
		return
	}
	c.add(s.Units)
	if c.numbers[cellLast] < micros {
		c.numbers[cellLast] = micros
	}
}

// removeCells removes and returns cells of one minute, at most limit and at most parcelRows.
func (t *cellSet) removeCells(limit int) []*cell {
	if limit > parcelRows {
		limit = parcelRows
	}
	var cells []*cell
	t.lastCell = nil
	for _, m := range t.minutes {
		for k, c := range m.cells {
			if len(cells) >= limit {
				break
			}
			cells = append(cells, c)
			delete(m.cells, k)
		}
		if len(cells) > 0 {
			break
		}
	}
	t.waiting -= len(cells)
	return cells
}
