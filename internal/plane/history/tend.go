package history

import (
	"context"
	"errors"
	"math/rand"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// upkeepInterval is the time between two calls of runUpkeep.
	upkeepInterval = time.Minute
	// upkeepAge is the minimum time between two upkeeps by any processes.
	upkeepAge = 45 * time.Second
	// upkeepTimeout bounds one upkeep.
	upkeepTimeout = 5 * time.Minute
)

// upkeepLoop runs the upkeep until the Writer is closed. Each process starts after a random delay.
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
		w.reportUpkeep(w.runUpkeep())
	}
}

// runUpkeep runs the upkeep unless another process has just done so. It uses the clock of the database: with
// a wrong clock of this machine, the whole history could be past its retention.
func (w *Writer) runUpkeep() error {
	ctx, cancel := context.WithTimeout(w.closing, upkeepTimeout)
	defer cancel()
	var failure error
	if err := batch.PanicError(func() {
		_, failure = doUpkeep(ctx, w.db, time.Time{}, upkeepAge)
		if harmful := pg.Harmful(ctx, w.db); harmful != nil {
			failure = errors.Join(failure, harmful)
		}
	}); err != nil {
		return err
	}
	return failure
}

// reportUpkeep passes the first of a series of failures to OnError. It ignores outages, which flushes report.
func (w *Writer) reportUpkeep(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == w.upkeepText || w.closing.Err() != nil || errors.Is(err, ratelimit.ErrUnavailable) {
		return
	}
	w.upkeepText = text
	if err != nil {
		w.callOnError(err)
	}
}
