package policy

import (
	"context"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/session"
)

// occasionally does what is due from time to time. The caller holds refreshing. A failure is
// reported and has no other effect.
func (p *Policy) occasionally(ctx context.Context) {
	now := p.settings.Now()
	if p.settings.OnApplied != nil {
		p.mu.Lock()
		applied := p.stats.Applied
		p.mu.Unlock()
		s := p.snapshot()
		problems := wrongTexts(s.set.wrong)
		if s.tooMany != nil {
			problems = append(problems, s.tooMany.Error())
		}
		_ = batch.PanicError(func() { p.settings.OnApplied(applied, p.poller.log(), problems) })
	}
	if now.Sub(p.settingsAt) >= settingsInterval {
		p.settingsAt = now
		within, cancel := context.WithTimeout(ctx, refreshTimeout)
		p.report("settings", session.Harmful(within, p.db))
		cancel()
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
