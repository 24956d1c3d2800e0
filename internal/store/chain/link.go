//nolint:revive // the methods of Link are described at Store
package chain

import (
	"context"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Link passes everything on to the next store. A store that wraps another one embeds it, and has the methods that do
// more. It is no embedded Store, because Yaegi does not find the methods of an interface that is embedded.
type Link struct{ Next Store }

func (l *Link) Take(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit,
	decisions []ratelimit.Decision) error {
	return l.Next.Take(ctx, timeout, hits, decisions)
}

func (l *Link) Reset(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit) error {
	return l.Next.Reset(ctx, timeout, hits)
}

func (l *Link) OpenQueue(timeout time.Duration, deliver func(calls []*batch.Call)) *batch.Queue {
	return l.Next.OpenQueue(timeout, deliver)
}

func (l *Link) Close()                          { l.Next.Close() }
func (l *Link) Leases() *lease.Set              { return l.Next.Leases() }
func (l *Link) Settle(s *batch.Settlement)      { l.Next.Settle(s) }
func (l *Link) Answers(subject string) bool     { return l.Next.Answers(subject) }
func (l *Link) Held(row lease.RowID) int64      { return l.Next.Held(row) }
func (l *Link) Prepare()                        { l.Next.Prepare() }
func (l *Link) Await(ctx context.Context) error { return l.Next.Await(ctx) }
func (l *Link) Ready() bool                     { return l.Next.Ready() }
func (l *Link) Unavailable() error              { return l.Next.Unavailable() }
func (l *Link) Stats() Stats                    { return l.Next.Stats() }
func (l *Link) Tick()                           { l.Next.Tick() }

func (l *Link) Charge(subject string, row lease.RowID, limit *ratelimit.Limit, units int64) {
	l.Next.Charge(subject, row, limit, units)
}
