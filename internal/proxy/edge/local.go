package edge

import (
	"context"
	"errors"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// UseStore sets the store. Without it, no request is decided with Local, and pauses have no effect.
func (d *Decider) UseStore(counters ratelimit.Store) {
	d.Store = counters
	d.inPostgres = Postgres(counters)
	if d.inPostgres != nil && d.OnError == Local {
		d.inPostgres.UseLocal()
	}
}

// paused reports whether all limits are paused.
func (d *Decider) paused() bool { return d.inPostgres != nil && d.inPostgres.Paused() }

// TakeLocal is the outcome of a request for which the store has made no decision because of err.
func (d *Decider) TakeLocal(q *Request, err error) Outcome {
	if errors.Is(err, ratelimit.ErrOverloaded) && !canRefuse(q) {
		return Outcome{Err: err}
	}
	s := d.inPostgres
	if s == nil || d.OnError != Local || errors.Is(err, ratelimit.ErrOverloaded) || errors.Is(err, ratelimit.ErrClosed) || !s.TakeLocal(err, q.Hits, q.Decisions) {
		return NoDecision(d.OnError, err)
	}
	outcome := Judge(q)
	outcome.Overage = 0 // this process guesses what the others have used, and a client may be billed for an overage
	return outcome
}

// Ask asks the policy, see ProxyPolicy.Ask. With Local, a sender that cannot be looked up is one without an API
// key, and counts by address. Blocks and limits without a quota for such senders do not refuse the request: the
// sender may be another.
func (d *Decider) Ask(p *ProxyPolicy, ctx context.Context, key, user string, f *policy.Facts, o *policy.Verdict) error {
	began := time.Now()
	err := p.Ask(ctx, d.Timeout, key, user, f, o)
	if err == nil || d.OnError != Local || key == "" && user == "" || errors.Is(err, ratelimit.ErrClosed) || errors.Is(err, ratelimit.ErrOverloaded) {
		return err
	}
	var nobody policy.Verdict
	if failure := p.Ask(ctx, d.Timeout-time.Since(began), "", "", f, &nobody); failure != nil || nobody.Refused() {
		return err
	}
	nobody.Unread = true
	*o = nobody
	return nil
}
