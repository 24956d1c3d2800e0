package postgres

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
)

const (
	// countInterval is the least time between two counts, and countTime what is added for each row: a
	// count reads up to MaxKeys rows of an index.
	countInterval = time.Second
	countTime     = 10 * time.Microsecond
)

// claimSQL returns a row if the rows of a prefix are to be counted now. countSQL counts them. In the row of the number, granted is the
// number, window_start the time of the count, and last_refill since when there are too many.
const (
	claimSQL = clockSQL + `
INSERT INTO {table} AS r (prefix, key, count, prev_count, window_start, expires_at)
SELECT $2::text, '` + numberKey + `', 0, 0, now, now + interval '2 hours' FROM clock
ON CONFLICT (prefix, key) DO UPDATE SET window_start = excluded.window_start,
	expires_at = CASE WHEN r.expires_at < excluded.expires_at - interval '1 hour' THEN excluded.expires_at ELSE r.expires_at END
WHERE r.window_start <= excluded.window_start - $3::bigint * interval '1 microsecond' OR r.window_start > excluded.window_start RETURNING 1`
	countSQL = clockSQL + `
INSERT INTO {table} AS r (prefix, key, count, prev_count, window_start, expires_at, granted)
SELECT $2::text, '` + numberKey + `', 0, 0, now, now + interval '2 hours',
	(SELECT count(*) FROM (SELECT FROM {table} t WHERE t.prefix = $2::text ORDER BY t.expires_at LIMIT $3::bigint + 3) c) FROM clock
ON CONFLICT (prefix, key) DO UPDATE SET granted = excluded.granted, last_refill = CASE WHEN excluded.granted > $3::bigint + 2 THEN coalesce(r.last_refill, excluded.window_start)
	WHEN excluded.granted > $3::bigint * 9 / 10 THEN r.last_refill END`
)

// countEvery is the time between two counts of a prefix.
func countEvery(max int) time.Duration { return countInterval + time.Duration(max)*countTime }

// countAll counts the rows of prefixes, while watch goes on.
func (b *keyBounds) countAll(ids []prefixID) {
	var err error
	if failure := batch.PanicError(func() {
		for _, id := range ids {
			if failed := b.count(id); failed != nil {
				err = failed
			}
		}
	}); failure != nil {
		err = failure
	}
	b.mu.Lock()
	b.uncounted = err
	b.counting = false
	b.mu.Unlock()
}

// count counts the rows of a prefix, unless another process does.
func (b *keyBounds) count(id prefixID) error {
	max := 0
	b.mu.Lock()
	if k := b.prefixes[id]; k != nil {
		max = k.max
	}
	b.mu.Unlock()
	if max == 0 {
		return nil // the prefix is not in use any more
	}
	claim := &Statement{SQL: keysSQL(claimSQL, id.durable), Args: []any{settingsOf(b.now, keysLockWait), id.prefix, countEvery(max).Microseconds()}}
	if err := runOne(b.execute, claim); err != nil || claim.Rows == 0 {
		return err
	}
	return runOne(b.execute, &Statement{SQL: keysSQL(countSQL, id.durable), Args: []any{settingsOf(b.now, keysLockWait), id.prefix, int64(max)}, Unnamed: true})
}
