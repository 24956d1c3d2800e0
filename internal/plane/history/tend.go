package history

import (
	"context"
	"errors"
	"math/rand"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/session"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// upkeepPause is the time between two calls of keepUp.
	upkeepInterval = time.Minute
	// upkeepAge is how old the last upkeep of any process is before the next one.
	upkeepAge = 45 * time.Second
	// upkeepTimeout is for one of them.
	upkeepTimeout = 5 * time.Minute
)

// upkeepLoop does the upkeep until the Writer is closed. The processes begin at different times.
func (w *Writer) upkeepLoop() {
	interval := time.Duration(rand.Int63n(int64(upkeepInterval)))
	for {
		ctx, cancel := context.WithTimeout(w.closing, interval)
		<-ctx.Done()
		cancel()
		if w.closing.Err() != nil {
			return
		}
		interval = upkeepInterval
		w.reportUpkeep(w.keepUp())
	}
}

// keepUp does the upkeep, unless another process has just done it, by the clock of the database: that of this machine could be wrong, and all that
// is recorded would be past its retention.
func (w *Writer) keepUp() error {
	ctx, cancel := context.WithTimeout(w.closing, upkeepTimeout)
	defer cancel()
	var failure error
	if err := batch.PanicError(func() {
		_, failure = doUpkeep(ctx, w.db, time.Time{}, upkeepAge)
		if harmful := session.Harmful(ctx, w.db); harmful != nil {
			failure = errors.Join(failure, harmful)
		}
	}); err != nil {
		return err
	}
	return failure
}

// reportUpkeep passes a failure to OnError, once until it is over. That the database does not answer
// is reported by the flushes.
func (w *Writer) reportUpkeep(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == w.upkeepText || w.closing.Err() != nil || errors.Is(err, ratelimit.ErrUnavailable) {
		return
	}
	w.upkeepText = text
	if err != nil && w.settings.OnError != nil {
		_ = batch.PanicError(func() { w.settings.OnError(err) })
	}
}
