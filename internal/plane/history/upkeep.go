package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// upkeepInterval is the time between two calls of runUpkeep.
	upkeepInterval = time.Minute
	// upkeepPause is the minimum time between two upkeeps by any processes, as an interval of Postgres.
	upkeepPause = "45 s"
	// upkeepTimeout bounds one upkeep.
	upkeepTimeout = 5 * time.Minute
)

// UpkeepSQL returns a statement that maintains the history. It creates the partitions of today and the next 7
// days, and deletes rows and drops partitions that are past their retention, by the clock of the database:
// with a wrong clock of this machine, the whole history could be past its retention. Any number of processes
// may run it. It does nothing if an upkeep ran within pause, an interval of Postgres.
//
// While it drops partitions, Writers wait for up to 100 ms. It skips partitions that another session uses.
// The next upkeep retries them. It returns a row for each effect, see rate_limit_upkeep. The column what is
// also dropped or skipped (a partition), and held_by names the users of a skipped partition.
func UpkeepSQL(pause string) string {
	return `WITH u AS MATERIALIZED (SELECT * FROM rate_limit_upkeep(pause => '` + pause + `'))
SELECT what, name, rows, NULL AS held_by FROM u UNION ALL
SELECT CASE WHEN d.held_by IS NULL THEN 'dropped' ELSE 'skipped' END, d.name, NULL, d.held_by
FROM (SELECT CASE WHEN bool_and(what <> 'busy') THEN now() END FROM u) AS f(now),
	rate_limit_drop_expired(f.now) AS d`
}

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

// runUpkeep runs the upkeep unless another process has just done so.
func (w *Writer) runUpkeep() error {
	ctx, cancel := context.WithTimeout(w.closing, upkeepTimeout)
	defer cancel()
	statement := &pgdb.Statement{SQL: UpkeepSQL(upkeepPause), Unnamed: true}
	var failure error
	if err := batch.PanicError(func() {
		if failure = w.db.Run(ctx, []*pgdb.Statement{statement}); failure == nil {
			failure = statement.Err
		}
		if failure != nil {
			failure = fmt.Errorf("upkeep of the history: %w", failure)
		}
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
