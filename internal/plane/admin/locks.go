package admin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// patience is how long a statement waits for a lock that another session holds.
const patience = 10 * time.Second

// holdersSQL returns the sessions that hold what the session $1 has waited for since $2 or longer,
// and that do not wait themselves. Of a session of another role, the server may show neither the
// state nor the times.
const holdersSQL = `WITH RECURSIVE holder AS (
	SELECT unnest(pg_blocking_pids(w.pid)) AS pid FROM pg_locks w WHERE w.pid = $1::int AND NOT w.granted AND w.waitstart <= clock_timestamp() - $2::interval
	UNION SELECT unnest(pg_blocking_pids(h.pid)) FROM holder h
)
SELECT concat_ws(', ', CASE WHEN h.pid = 0 THEN 'a prepared transaction' ELSE 'pid ' || h.pid END, 'application ' || nullif(a.application_name, ''), 'role ' || a.usename,
	a.state, 'transaction since ' || date_trunc('second', a.xact_start), 'statement since ' || date_trunc('second', a.query_start))
FROM holder h LEFT JOIN pg_stat_activity a ON a.pid = h.pid WHERE h.pid = 0 OR cardinality(pg_blocking_pids(h.pid)) = 0 ORDER BY h.pid`

// lockError is that a lock was waited for in vain.
type lockError struct {
	waited  time.Duration
	holders []string
}

func (e *lockError) Error() string {
	holders := strings.Join(e.holders, "; ")
	if holders == "" {
		holders = "no longer known which"
	}
	return fmt.Sprintf("waited %s for a lock that another session holds: %s: end it with pg_terminate_backend, or try again later", e.waited.Round(time.Second), holders)
}

// patiently runs a statement, and cancels it if it waits for a lock for longer than most. The
// error then says which sessions hold the lock. Errors are for people.
//
// A second connection looks for these sessions, since they are known only as long as the statement
// waits. Behind a pooler the number of the waiting session is not known, and the statement waits on.
func (d *Database) patiently(ctx context.Context, most time.Duration, statement func() error) error {
	watching, stop := context.WithCancel(ctx)
	found := make(chan []string, 1)
	go func() { found <- d.holders(watching, most) }()
	started := time.Now()
	err := statement()
	stop()
	if holders := <-found; err != nil && len(holders) > 0 {
		return &lockError{time.Since(started), holders}
	}
	return d.failure(err)
}

// holders waits until the session of d has waited for a lock for long enough. It then cancels the
// statement of the session, and returns which sessions hold the lock.
func (d *Database) holders(ctx context.Context, most time.Duration) []string {
	if !sleep(ctx, most) {
		return nil
	}
	conn, err := pgx.ConnectConfig(ctx, d.conn.Config())
	if err != nil {
		return nil // the statement waits on
	}
	defer conn.Close(context.WithoutCancel(ctx))
	pid := int64(d.conn.PgConn().PID())
	for {
		// The wait may have begun some milliseconds after the statement.
		result, err := conn.Query(ctx, holdersSQL, pid, intervalOf(most*9/10))
		if err != nil {
			return nil
		}
		holders, err := pgx.CollectRows(result, pgx.RowTo[string])
		if err != nil {
			return nil
		}
		if len(holders) > 0 {
			if _, err := conn.Exec(context.WithoutCancel(ctx), "SELECT pg_cancel_backend($1::int)", pid); err != nil {
				return nil
			}
			return holders
		}
		if !sleep(ctx, most/10) {
			return nil
		}
	}
}

// sleep reports whether the time has passed before the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
