package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
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

// UpkeepSQL returns a statement that maintains the history. The statement creates the partitions of today and
// the next 7 days, and deletes rows and drops partitions that are past their retention. It uses the clock of
// the database: if it used a wrong clock of this machine, the whole history could seem past its retention.
// Any number of processes may run the statement, because it does nothing if an upkeep ran within pause, which
// is an interval of Postgres.
//
// While partitions are dropped, Writers wait for up to 100 ms. A partition that another session uses is
// skipped until the next upkeep. The statement returns a row for each effect, see rate_limit_upkeep. For a
// partition, the column what is "dropped" or "skipped", and held_by names the sessions that use a skipped
// partition.
func UpkeepSQL(pause string) string {
	return `WITH u AS MATERIALIZED (SELECT * FROM rate_limit_upkeep(pause => '` + pause + `'))
SELECT what, name, rows, NULL AS held_by FROM u UNION ALL
SELECT CASE WHEN d.held_by IS NULL THEN 'dropped' ELSE 'skipped' END, d.name, NULL, d.held_by
FROM (SELECT now() FROM u HAVING bool_and(what <> 'busy')) AS f(now), rate_limit_drop_expired(f.now) AS d`
}

// upkeepLoop runs the upkeep until the Writer is closed. The first upkeep comes after a random delay, so that
// the processes do not run it at the same time.
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

// runUpkeep runs the upkeep, unless another process ran it within upkeepPause.
func (w *Writer) runUpkeep() error {
	statement := &pgdb.Statement{SQL: UpkeepSQL(upkeepPause), Unnamed: true, Synchronous: true}
	return batch.Try(func() error {
		failure := w.db.Run(w.closing, upkeepTimeout, []*pgdb.Statement{statement})
		if failure == nil {
			failure = statement.Err
		}
		if failure != nil {
			failure = fmt.Errorf("upkeep of the history: %w", failure)
		}
		return errors.Join(failure, pg.Harmful(w.closing, w.db))
	})
}

// reportUpkeep passes the first of a series of equal failures to OnError. reportUpkeep does not report that
// there was no connection, because the flushes do.
func (w *Writer) reportUpkeep(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == w.upkeepText || w.closing.Err() != nil || errors.Is(err, pgdb.ErrNotSent) {
		return
	}
	w.upkeepText = text
	if err != nil {
		w.callOnError(err)
	}
}
