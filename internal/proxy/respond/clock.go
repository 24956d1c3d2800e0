package respond

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// clockPeriod is the minimum time for which a Clock keeps an estimate. clockNoise is the smallest
	// difference that a Clock corrects.
	clockPeriod = 10 * time.Second
	clockNoise  = 1500 * time.Millisecond
)

// Clock estimates how far the clock of a database is ahead of this process, so that clients get times by the
// clock of the proxy. A nil Clock always estimates 0.
type Clock struct {
	// Latest, unless it is nil, gets each result of Ahead; atomic.
	Latest *int64

	mu             sync.Mutex // guards the fields below
	latest, before time.Duration
	start          time.Time // the start of the period of latest
}

// Ahead returns by how many whole seconds the clock of the database is ahead; it is negative if the clock is
// behind. now is the time at which the decisions of a request arrived. The database decides before now, so a
// measured difference is never above the true difference, and the largest measurement of a period is the best
// estimate.
func (c *Clock) Ahead(decisions []ratelimit.Decision, now time.Time) int64 {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range decisions {
		d := &decisions[i]
		if d.Source != ratelimit.FromPostgres || d.DecidedAt == 0 {
			continue
		}
		ahead := time.UnixMicro(d.DecidedAt).Sub(now)
		if first := c.start.IsZero(); first || now.Sub(c.start) > clockPeriod {
			c.before = c.latest
			if first {
				c.before = ahead
			}
			c.latest = ahead
			c.start = now
		}
		if ahead > c.latest {
			c.latest = ahead
		}
	}
	ahead := c.latest
	if c.before > ahead {
		ahead = c.before
	}
	seconds := int64(0)
	if ahead <= -clockNoise || ahead >= clockNoise {
		seconds = int64(ahead.Round(time.Second) / time.Second)
	}
	if c.Latest != nil {
		atomic.StoreInt64(c.Latest, seconds)
	}
	return seconds
}

// ShiftResets converts the times in Reset from a database's clock, which is ahead by some seconds, to the
// clock of this process. Decisions of Store.TakeLocal are by the database's clock, too.
func ShiftResets(decisions []ratelimit.Decision, ahead int64) {
	for i := range decisions {
		d := &decisions[i]
		if !d.Reset.IsZero() {
			d.Reset = d.Reset.Add(-time.Duration(ahead) * time.Second)
		}
	}
}
