package policy

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// occasionally does what is due from time to time. The caller holds refreshing. A failure is
// reported and has no other effect.
func (p *Policy) occasionally(ctx context.Context) {
	now := p.settings.Now()
	if p.settings.OnApplied != nil {
		p.mu.Lock()
		applied := p.stats.Applied
		p.mu.Unlock()
		problems := wrongTexts(p.snapshot().set.wrong)
		_ = batch.PanicError(func() { p.settings.OnApplied(applied, p.poller.log, problems) })
	}
	if now.Sub(p.replicated) >= replicationInterval {
		p.replicated = now
		p.report("replication", p.readReplication(ctx))
	}
	if now.Sub(p.forgotten) >= forgetInterval {
		p.forgotten = now
		p.report("forget", p.forget(ctx))
	}
}

// forgetRounds bounds what one forget deletes, in statements of forgetMost changes.
const forgetRounds = 100

// forget deletes what is too old.
func (p *Policy) forget(ctx context.Context) error {
	for round := 0; round < forgetRounds; round++ {
		rows, err := read(ctx, p.db, 10*time.Second, "deleting old changes", "SELECT rate_limit_forget()::text", 1)
		if err != nil || len(rows) != 1 {
			return err
		}
		if n, err := strconv.ParseInt(rows[0], 10, 64); err != nil || n < forgetMost {
			return nil
		}
	}
	return nil
}

// Replication is how the policy of a region comes from its publisher.
type Replication struct {
	Region string        // "" if the database is no region: the other fields are zero then
	State  string        // streaming, copying, stopped, disabled or none
	Silent time.Duration // since the publisher was last heard of
	Errors int64         // how many times a change could not be applied
}

// Streams reports whether changes come from the publisher, or need not.
func (r *Replication) Streams() bool { return r.Region == "" || r.State == streaming }

const (
	streaming = "streaming"

	// replicationInterval is the time between two looks at the replication.
	replicationInterval = 5 * time.Second
)

// replicationSQL has a row for a region, and none for another database.
const replicationSQL = `SELECT region, state, silent_seconds::text, errors::text FROM rate_limit_replication WHERE role = 'region'`

// readReplication looks at the replication. A database that cannot say is no region.
func (p *Policy) readReplication(ctx context.Context) error {
	row, err := read(ctx, p.db, refreshTimeout, "looking at the replication", replicationSQL, 4)
	if errors.Is(err, ratelimit.ErrUnavailable) {
		return nil // the next poll reports it
	}
	r := Replication{}
	if err == nil && len(row) == 4 {
		silent, _ := strconv.ParseFloat(row[2], 64) // the statement gives numbers
		r.Region = row[0]
		r.State = row[1]
		r.Silent = time.Duration(silent * float64(time.Second))
		r.Errors, _ = strconv.ParseInt(row[3], 10, 64)
	}
	p.mu.Lock()
	p.stats.Replication = r
	p.mu.Unlock()
	if r.Streams() {
		return nil
	}
	return fmt.Errorf("the region %s gets no changes from the publisher (its subscription: %s): what has come before holds. See: caddy pg-ratelimit nodes", r.Region, r.State)
}
