package ratelimit

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

// Row is a row's state, for tests that compare it with the table's.
type Row struct {
	Count, PrevCount, Start int64
	Tokens                  float64
	HasTokens               bool
	Refill, Remainder       int64
	Hits                    string
	Expires                 int64
}

func (r *row) export() Row {
	return Row{r.count, r.prevCount, r.start, r.tokens, r.hasTokens, r.refill, r.remainder, fmt.Sprint(r.hits), r.expires}
}

// KeepExpired turns sweeping off: a clock that steps back finds every row.
func (m *Memory) KeepExpired() { m.steps = 0 }

// RowOf returns a key's row, or false.
func (m *Memory) RowOf(h Hit) (Row, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.rows[m.key(&h)]
	if r == nil {
		return Row{}, false
	}
	return r.export(), true
}

// Size is how many rows there are.
func (m *Memory) Size() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.rows)
}

// MaxClears is half of how many cleared rows are known.
const MaxClears = maxClears

// WithoutBlocked asks the database about every hit.
const WithoutBlocked = -1

// Request is one call of a batch that RunBatch decides.
type Request struct {
	Hits      []Hit
	Reset     bool
	Decisions []Decision
	Err       error
}

// Batch is requests that are decided together, at a time.
type Batch struct {
	Now      int64
	Requests []*Request
}

// newCalls makes the calls of requests that nobody waits for.
func newCalls(p *Postgres, requests []*Request) []*Call {
	var calls []*Call
	for _, r := range requests {
		c := p.newCall(r.Hits, r.Reset)
		calls = append(calls, c)
	}
	return calls
}

// RunBatch decides requests in one batch, and the batches that follow from it.
// What is to come between those is decided after the first.
func (p *Postgres) RunBatch(requests []*Request, between ...*Request) {
	q, err := p.queue(10 * time.Second)
	if err != nil {
		panic(err)
	}
	runBatch(p, requests, between, func(f *flight, calls []*Call) []*Call {
		return runSafely(q, f, calls, nil, time.Now().Add(q.timeout))
	})
}

func runBatch(p *Postgres, requests, between []*Request, run func(f *flight, calls []*Call) (again []*Call)) {
	calls := newCalls(p, requests)
	batch := append([]*Call(nil), calls...)
	for first := true; first || len(batch) > 0; first = false {
		f := &flight{}
		for _, c := range batch {
			if c.internal {
				f.backs = append(f.backs, c)
			}
		}
		batch = run(f, batch)
		p.held.land(f, batch)
		if len(between) == 0 {
			continue
		}
		if len(batch) > 0 && batch[0].internal {
			p.held.gone(batch[0].holder) // who comes between does not wait
			batch[0].holder = nil
		}
		runBatch(p, between, nil, run)
		between = nil
	}
	for i, r := range requests {
		if len(calls[i].done) != 1 {
			panic(fmt.Sprintf("a request of a batch alone is not to wait: %+v; holders %+v", r.Hits, p.held.holders))
		}
		r.Decisions, r.Err = calls[i].Decisions, calls[i].Err
	}
}

// RunSchedule decides batches of requests of one hit, one after the other, each
// at its time, in a single pipeline; watch is run after each. The tables must be
// there.
func (p *Postgres) RunSchedule(batches []Batch, watch func(batch int) []*Statement) {
	var plans []*plan
	var calls [][]*Call
	var statements []*Statement
	for i, b := range batches {
		plan := newPlan()
		calls = append(calls, newCalls(p, b.Requests))
		addCalls(plan, calls[i])
		plans = append(plans, plan)
		statements = append(append(statements, plan.write(p.texts, b.Now)...), watch(i)...)
	}
	if err := p.db.Run(context.Background(), statements); err != nil {
		panic(err)
	}
	for i, plan := range plans {
		plan.close()
		if again := p.conclude(&Queue{}, &flight{}, append([]*Call(nil), calls[i]...), time.Now().Add(10*time.Second), p.clears.begin()); len(again) > 0 {
			panic("a request of one hit has nothing to give back")
		}
		for j, r := range batches[i].Requests {
			r.Decisions, r.Err = calls[i][j].Decisions, calls[i][j].Err
		}
	}
}

// Steps decides batches as a Postgres store does, but with the Go steps in the
// place of the statements.
type Steps struct {
	p    *Postgres
	rows map[rowKey]*row
}

// NewSteps returns one without rows.
func NewSteps() *Steps {
	return &Steps{p: NewPostgres(nil, PostgresOptions{MaxBlockedKeys: WithoutBlocked}), rows: map[rowKey]*row{}}
}

// RunBatch is Postgres.RunBatch, with the clock that PostgresOptions.Now is.
func (s *Steps) RunBatch(clock func() int64, requests []*Request, between ...*Request) {
	runBatch(s.p, requests, between, func(f *flight, calls []*Call) []*Call {
		plan, now, began := newPlan(), clock(), s.p.clears.begin()
		addCalls(plan, calls)
		f.holder = s.p.held.setOut(plan)
		for _, wave := range plan.waves {
			for _, g := range wave {
				g.statement = Statement{} // another store may have had it, and failed
				for _, it := range g.items {
					s.step(it, now)
				}
			}
		}
		plan.close()
		return s.p.conclude(&Queue{}, f, calls, time.Now().Add(10*time.Second), began)
	})
}

// step does to a row what an item's statement does.
func (s *Steps) step(it *item, now int64) {
	it.answered, it.now = true, now
	r := s.rows[it.id]
	switch it.kind {
	case take:
		if r == nil {
			r = &row{}
			s.rows[it.id] = r
		}
		it.granted = algorithms[stepsOf(it.limit)].take(it.limit, r, now, it.n, it.cost)
	case refund:
		if r != nil {
			var c *claim
			if it.claim != (claim{}) {
				c = &it.claim
			}
			algorithms[stepsOf(it.limit)].refund(it.limit, r, now, it.cost, c)
		}
	case reset:
		delete(s.rows, it.id)
	}
	if r != nil {
		it.row = *r
	}
}

// RowOf returns a key's row, or false.
func (s *Steps) RowOf(h Hit) (Row, bool) {
	r := s.rows[rowKey{h.Limit.Durable, h.Limit.Prefix, h.storedKey()}]
	if r == nil {
		return Row{}, false
	}
	return r.export(), true
}

// float8 reads a double precision column; NULL is 0.
func float8(column []byte) float64 {
	if len(column) != 8 {
		return 0
	}
	return math.Float64frombits(binary.BigEndian.Uint64(column))
}

// RowStatement reads a key's row out of the table, into r if there is one.
func RowStatement(h Hit, r *Row, found *bool) *Statement {
	table := ephemeralTable
	if h.Limit.Durable {
		table = durableTable
	}
	return &Statement{
		SQL: "SELECT count, prev_count, window_start, tokens, last_refill, remainder, hits, expires_at FROM " + table +
			" WHERE prefix = $1::text AND key = $2::text",
		Args: []any{h.Limit.Prefix, h.storedKey()},
		Row: func(c [][]byte) error {
			*found = true
			*r = Row{bigint(c[0]), bigint(c[1]), timestamp(c[2]), float8(c[3]), c[3] != nil, timestamp(c[4]), bigint(c[5]),
				fmt.Sprint(timestamps(c[6])), timestamp(c[7])}
			return nil
		},
	}
}

// Run runs statements of a test's own.
func (p *Postgres) Run(statements []*Statement) error {
	if err := p.db.Run(context.Background(), statements); err != nil {
		return err
	}
	for _, s := range statements {
		if s.Err != nil {
			return s.Err
		}
	}
	return nil
}

// Blank reports whether the row says no more than no row.
func (r Row) Blank() bool { return r.Start == 0 && !r.HasTokens && r.Refill == 0 && r.Hits == "[]" }

// DB is what the store runs its statements on.
func (p *Postgres) DB() DB { return p.db }

// LineUp lines calls up that come again, of which those named "back" give back, and
// returns the order in which they do.
func LineUp(batches ...[]string) (order []string) {
	q, f := &Queue{timeout: time.Minute}, &flight{}
	nobodyBefore(q, time.Now())
	for _, names := range batches {
		var calls []*Call
		for _, name := range names {
			calls = append(calls, &Call{Owner: name, internal: name == "back", deadline: time.Now().Add(time.Minute)})
		}
		comeAgain(q, calls)
	}
	calls, _, _, _ := board(q, f)
	f.watch.Stop()
	for _, c := range calls {
		order = append(order, c.Owner.(string))
	}
	return order
}

// MayGiveBack reports whether a batch of requests may give back to a hit's row.
func (p *Postgres) MayGiveBack(requests []*Request, h Hit) bool {
	plan := newPlan()
	addCalls(plan, newCalls(p, requests))
	by := p.held.setOut(plan)
	return by != nil && by.mayGiveBack(rowOf(&h))
}

// Holders is how many batches may give back.
func (p *Postgres) Holders() int {
	p.held.mu.Lock()
	defer p.held.mu.Unlock()
	return len(p.held.holders)
}

// Migrated reports whether the store knows the tables to be right.
func (p *Postgres) Migrated() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.migrated
}

// MigrationSQL is what a store runs where the tables are not right.
const MigrationSQL = migrationSQL

// CleanUp runs the statement that deletes a prefix's expired rows, once.
func (p *Postgres) CleanUp(prefix string, now int64) (gone int64, err error) {
	err = p.Run([]*Statement{{SQL: p.texts.cleanup[ephemeralTable], Args: []any{now, prefix}, Row: func(columns [][]byte) error {
		gone = bigint(columns[0])
		return nil
	}}})
	return gone, err
}

// Waiting is how many keys have somebody in line.
func (l *Limiter) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// Period returns the window on the calendar that now is in.
func (l *Limit) Period(now int64) (start, end int64) { return period(l, now) }

// PeriodSQL is Postgres's query for it: of i.now, i.unit and i.zone.
var PeriodSQL = periodSQL("i.now", "i.unit", "i.zone")
