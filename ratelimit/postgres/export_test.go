package postgres

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/hooks"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// DecideBatch decides calls as one batch: a test cannot arrange thousands of batches by
// the timing of its calls.
func (s *Store) DecideBatch(calls []*batch.Call) { s.DecideBatchWithin(time.Minute, calls) }

// DecideBatchWithin is DecideBatch with a timeout.
func (s *Store) DecideBatchWithin(timeout time.Duration, calls []*batch.Call) {
	storeKeys(calls)
	s.engine.decide(batch.NewQueue(batch.Options{Timeout: timeout}), append([]*batch.Call(nil), calls...), time.Now().Add(timeout))
}

// IndexSQL runs before each statement that reads rows.
const IndexSQL = indexSQL

// TakeFirst makes the next transaction take before it looks, as that of a new store. A schedule then has
// the same outcome whatever came before it.
func (s *Store) TakeFirst() { atomic.StoreInt32(&s.engine.looks, 0) }

// DecideKnown decides the calls that need no database, and returns how many these are.
func (s *Store) DecideKnown(calls []*batch.Call) int {
	n, _ := decideKnown(s, time.Minute, calls)
	return n
}

// PlanOf plans calls and returns the entries and what decides each hit. With inline the frequent hits
// are planned in addRequests, else each hit by the function for it.
func PlanOf(calls []*batch.Call, inline bool) string {
	p := newPlan()
	defer p.free()
	text := ""
	for _, c := range calls {
		r := &request{call: c}
		if inline {
			addRequests(p, []*request{r})
		} else {
			for i := range c.Hits {
				h := &c.Hits[i]
				if c.Reset || h.Peek || h.Cost < 1 || h.Cost > h.Limit.Capacity() {
					r.positions = append(r.positions, addUnusual(p, c, h))
				} else {
					r.positions = append(r.positions, add(p, take, h.Limit, rowOf(h), h.Cost))
				}
			}
		}
		for _, at := range r.positions {
			text += fmt.Sprint(at.entry.id, at.entry.kind, at.entry.stage, at.entry.cost, at.nth, at.refund != nil, ";")
		}
	}
	for _, pass := range p.stages {
		for _, g := range pass {
			text += fmt.Sprint("\n", g.kind, g.definition.Name)
			for _, e := range g.entries {
				text += fmt.Sprint(" ", e.id, e.n, e.cost)
			}
		}
	}
	return text
}

// ReadBothWays reads the result of a take on so many rows: all columns by one call, and one after the
// other.
func ReadBothWays(l *ratelimit.Limit, rows int, result []byte) (together, single string, err error) {
	read := func(how func(g *group) error) string {
		g := newGroup()
		g.begin(statementKey{kind: take, definition: algorithm.Of(l)})
		g.statement = Statement{Result: result, Rows: rows}
		text := ""
		for i := 0; i < rows; i++ {
			g.entries = append(g.entries, &entry{kind: take, view: algorithm.View{Limit: l}})
		}
		err = errors.Join(err, how(g))
		for _, e := range g.entries {
			text += fmt.Sprintln(e.answered, e.granted, e.view.Now, e.view.Row)
		}
		return text
	}
	width := stateColumn + algorithm.Of(l).SQL.Width()
	together = read(readRows)
	single = read(func(g *group) error { return readRowsCarefully(g, width) })
	return together, single, err
}

// GiveBack gives leased units of a hit's row back.
func (s *Store) GiveBack(h ratelimit.Hit, units, claim int64) error {
	q := batch.NewQueue(batch.Options{Timeout: time.Minute})
	d := newDispatch(s.engine, q, context.Background(), nil)
	p := newPlan()
	row := lease.RowID{Durable: h.Limit.Durable, Prefix: h.Limit.Prefix, Key: h.StoredKey()}
	addReturn(p, &lease.Return{Row: row, Limit: h.Limit, Units: lease.Units{N: units, Claim: claim}})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	d.ctx = ctx
	err := d.execute(p.write(d.engine.texts, d.settings))
	if err == nil {
		err = p.statements[0].Err
	}
	return err
}

// CleanupSQL is the statement that deletes expired rows of the unlogged table. A store runs it
// at random moments.
var CleanupSQL = sharedStatements().cleanup[cleanupKey{}]

// KeysStatements are the statements about the rows of a prefix with MaxKeys.
func KeysStatements(durable bool) []Statement {
	settings := []int64{0, 100}
	prefixes, keys := []string{"p1", "p1", "p2"}, []string{"1", "11", "new"}
	return []Statement{
		{SQL: keysSQL(readKeysSQL, durable), Args: []any{settings, prefixes, []string{numberKey, otherKey, numberKey}}},
		{SQL: keysSQL(claimSQL, durable), Args: []any{settings, "p1", int64(1000)}},
		{SQL: keysSQL(countSQL, durable), Args: []any{settings, "p1", int64(1000)}, Unnamed: true},
		{SQL: keysSQL(haveRowSQL, durable), Args: []any{settings, prefixes, keys}},
		{SQL: keysSQL(copyRowSQL, durable), Args: []any{settings, prefixes, keys}},
	}
}

// MigrationSQL is what a store runs if the tables are not right.
const MigrationSQL = migrationSQL

// AddSettlement adds a settlement for the next batch, and sends none by itself.
func (s *Store) AddSettlement(h *hooks.Settlement) {
	s.engine.settles.mu.Lock()
	s.engine.settles.waking = true
	s.engine.settles.mu.Unlock()
	settle(s, h)
}

// LocalRows returns how many rows are remembered for decisions without the database, and how many of them have
// charges that the database does not know.
func LocalRows(s *Store) (rows, unpaid int) {
	k := s.engine.local
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.rows), len(k.unpaid)
}

// ForgetUnusedPrefixes forgets the prefixes with MaxKeys that are not in use at a time.
func ForgetUnusedPrefixes(s *Store, now time.Time) { s.engine.bounds.inUse(now) }

// StoreOf is the store of a part, or nil until it is known.
func (s *Store) StoreOf(part int) *Store {
	if p := partsOf(s); p != nil {
		return p.stores[part]
	}
	return nil
}

// NextBill is the part of the next charges that the database does not know, and whether there are some.
func (s *Store) NextBill() (part int, some bool) {
	charges, part := s.engine.local.bill(decidingStores(s))
	return part, len(charges) > 0
}

// Queues is how many timeouts have a queue.
func (s *Store) Queues() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queues)
}

// PartOf is the part of a subject.
func PartOf(subject string, parts int) int { return partOfSubject(subject, parts) }

// Meaning is what the text of a statement on rows means.
type Meaning struct {
	Kind                         string // take, look, refund or reset
	Width                        int    // columns of state in a result
	Durable, Alike, AllOrNothing bool
}

// Meanings are those of all statements on rows, by text. A text can be that of several algorithms.
var Meanings = sync.OnceValue(func() map[string]Meaning {
	all := map[string]Meaning{}
	for key, text := range sharedStatements().texts {
		all[text] = Meaning{
			Kind: []string{"take", "look", "refund", "reset"}[key.kind], Width: key.definition.SQL.Width(),
			Durable: key.durable, Alike: key.alike, AllOrNothing: key.allOrNothing,
		}
	}
	return all
})

// Simulate makes a store take random numbers and hashes from a simulation.
func Simulate(s *Store, random func() float64, hash func(key string) uint64) {
	s.engine.server.random = random
	seeded := func(_ maphash.Seed, key string) uint64 { return hash(key) }
	s.engine.blocked.hash = seeded
	s.engine.leases.Hash = seeded
}
