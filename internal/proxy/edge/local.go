package edge

import (
	"errors"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// UseStore sets the store. Without it, no request is decided with Local.
func (d *Decider) UseStore(counters ratelimit.Store) {
	d.Store = counters
	d.inPostgres = Postgres(counters)
	if d.inPostgres != nil && d.OnError == Local {
		d.inPostgres.UseLocal()
	}
}

// TakeLocal is the outcome of a request for which the store has made no decision because of err.
func (d *Decider) TakeLocal(q *Request, err error) respond.Outcome {
	if errors.Is(err, ratelimit.ErrOverloaded) && !canRefuse(q) {
		return respond.Outcome{Err: err}
	}
	s := d.inPostgres
	if s == nil || d.OnError != Local || errors.Is(err, ratelimit.ErrOverloaded) || errors.Is(err, ratelimit.ErrClosed) || !s.TakeLocal(err, q.Hits, q.Decisions) {
		return NoDecision(d.OnError, err)
	}
	outcome := Judge(q)
	outcome.Overage = 0 // this process guesses what the others have used, and a client may be billed for an overage
	return outcome
}
