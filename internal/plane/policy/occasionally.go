package policy

import (
	"context"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
)

// occasionally does what is due from time to time. The caller holds refreshing. A failure is
// reported and has no other effect.
func (p *Policy) occasionally(ctx context.Context) {
	if p.settings.OnApplied != nil {
		s := p.snapshot()
		problems := wrongTexts(s.set.wrong)
		if s.tooMany != nil {
			problems = append(problems, s.tooMany.Error())
		}
		_ = batch.PanicError(func() { p.settings.OnApplied(p.poller.applied, p.poller.log(), problems) })
	}
	now := p.settings.Now()
	if now.Sub(p.forgotten) >= forgetInterval {
		const sql = "SELECT rate_limit_forget()::text"
		deleted, err := read(ctx, p.db, 10*time.Second, "deleting old changes", sql)
		if len(deleted) != 1 || deleted[0] != forgetMost { // else the next poll deletes more
			p.forgotten = now
		}
		p.report("forget", err)
	}
}

// forgetMost is the largest number that rate_limit_forget deletes.
const forgetMost = "10000"
