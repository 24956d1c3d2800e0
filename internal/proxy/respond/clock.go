package respond

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// clockPeriod is the time for which a Clock keeps its estimate at least, and clockNoise the least
	// difference that a Clock corrects.
	clockPeriod = 10 * time.Second
	clockNoise  = 1500 * time.Millisecond
)

// Clock estimates by how much the clock of a database is ahead of this process, so that clients get times by
// the clock of the proxy. A nil Clock finds no difference.
type Clock struct {
	// Latest is the latest result of Ahead; atomic.
	Latest int64

	mu             sync.Mutex // guards what follows
	latest, before time.Duration
	began          time.Time // of the period of latest
}

// Ahead returns by how many whole seconds the database is ahead; below 0 it is behind. now is the moment at
// which the decisions of a request came. A decision is never later than now by the clock of the database, so
// the largest difference of a period is the best one.
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
		if first := c.began.IsZero(); first || now.Sub(c.began) > clockPeriod {
			c.before = c.latest
			if first {
				c.before = ahead
			}
			c.latest = ahead
			c.began = now
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
	atomic.StoreInt64(&c.Latest, seconds)
	return seconds
}
