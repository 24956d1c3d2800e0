package postgres

import (
	"context"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// DecideBatch decides calls as one batch: a test cannot arrange thousands of batches by
// the timing of its calls.
func (s *Store) DecideBatch(calls []*batch.Call) {
	storeKeys(calls)
	s.engine.decide(batch.NewQueue(batch.Options{Timeout: time.Minute}), append([]*batch.Call(nil), calls...), time.Now().Add(time.Minute))
}

// GiveBack gives leased units of a hit's row back.
func (s *Store) GiveBack(h ratelimit.Hit, units, claim int64) error {
	q := batch.NewQueue(batch.Options{Timeout: time.Minute})
	d := newDispatch(s.engine, q, context.Background(), nil)
	p := newPlan()
	row := lease.Row{Durable: h.Limit.Durable, Prefix: h.Limit.Prefix, Key: h.StoredKey()}
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
var CleanupSQL = newStatements().cleanup[false]

// MigrationSQL is what a store runs if the tables are not right.
const MigrationSQL = migrationSQL
