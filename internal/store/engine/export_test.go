package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/statement"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// ServerSQL identifies the server.
const ServerSQL = serverSQL

// Take implements ratelimit.Store.
func (e *Engine) Take(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit,
	decisions []ratelimit.Decision) error {
	return e.Call(ctx, time.Now(), timeout, hits, decisions, false)
}

// Reset implements ratelimit.Store.
func (e *Engine) Reset(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit) error {
	return e.Call(ctx, time.Now(), timeout, hits, nil, true)
}

// DecideBatch decides calls as one batch. Tests use it because they cannot form thousands of batches by the
// timing of calls.
func (e *Engine) DecideBatch(calls []*batch.Call) {
	storeKeys(calls)
	now := time.Now()
	for _, c := range calls {
		c.Arrived = now
	}
	for _, j := range batch.Collect(e.lanes[1].backlog, true, true) {
		batch.Add(e.lanes[0].backlog, j, time.Hour)
	}
	e.mu.Lock()
	side := e.newQueue(time.Minute, 0, nil, nil)
	e.mu.Unlock()
	d := &decider{engine: e, side: side, backlog: e.lanes[0].backlog}
	d.queue = batch.NewQueue(batch.Options{Timeout: time.Minute}, d)
	decideInDatabase(d, append([]*batch.Call(nil), calls...), now.Add(time.Minute))
}

// OnPurpose is the start of the error of a transaction that fails on purpose.
const OnPurpose = statement.OnPurpose

// TakeFirst clears all remembered rows, so that the next transaction takes before it peeks, as in a new
// store. Without it, the result of a schedule would depend on earlier schedules.
func (e *Engine) TakeFirst() {
	lease.Clear(e.rows)
}

// CleanupSQL returns the statement that deletes expired rows of the unlogged table. slots is set if the
// process has used slots. A store runs the statement at random moments.
func CleanupSQL(slots bool) string { return statement.New(nil).Cleanup(false, slots) }

// AddSettlement adds a settlement to the next batch of requests.
func (e *Engine) AddSettlement(c *batch.Charge) {
	e.settleWait = time.Hour
	e.Adjust(c)
}

// Waiting returns the number of jobs that wait.
func (e *Engine) Waiting() int32 {
	return atomic.LoadInt32(&e.lanes[0].backlog.Waiting) + atomic.LoadInt32(&e.lanes[1].backlog.Waiting)
}

// Meaning describes a statement on rows. Parameters are the names of the arguments after the keys.
type Meaning struct {
	Kind                                   string // take, peek, refund, reset, release or settle
	Width                                  int    // the number of state columns in a result
	Durable, Alike, AllOrNothing, Reserves bool
	Parameters                             []string
}

// Meanings returns the meanings of all statements on rows, by text. Several algorithms can share a text.
var Meanings = sync.OnceValue(func() map[string]Meaning {
	meanings := map[string]Meaning{}
	texts := statement.New(nil)
	definitions := algorithm.All()
	for _, a := range []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow} {
		definitions = append(definitions, algorithm.Of(&ratelimit.Limit{Algorithm: a, Reserves: true}))
	}
	for _, d := range definitions {
		addMeanings(meanings, texts, d)
	}
	return meanings
})

// addMeanings adds the meanings of the statements of a definition.
func addMeanings(meanings map[string]Meaning, texts *statement.Texts, d *algorithm.Definition) {
	for kind, name := range []string{"take", "peek", "refund", "reset", "release", "settle"} {
		for flags := range 16 {
			key := statement.Key{Kind: statement.Kind(kind), Definition: d, Durable: flags&1 != 0,
				Sync: flags&2 != 0, AllOrNothing: flags&4 != 0, Uniform: flags&8 != 0}
			if key.Kind != statement.Charge && flags >= 4 && (key.Kind != statement.Settle ||
				key.AllOrNothing) || d.Reserves && key.Kind > statement.Peek {
				continue
			}
			text := texts.Of(key)
			meaning := Meaning{Kind: name, Width: d.SQL.Width, Durable: key.Durable, Alike: key.Uniform,
				AllOrNothing: key.AllOrNothing, Reserves: d.Reserves}
			for _, p := range text.Parameters {
				meaning.Parameters = append(meaning.Parameters, p.Name)
			}
			meanings[text.SQL] = meaning
		}
	}
}

// LedgerSQL returns a statement that adds settlements to the ledger.
func LedgerSQL(sync bool) string { return statement.New(nil).Ledger(sync) }
