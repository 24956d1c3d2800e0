package archive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Options say what Run does.
type Options struct {
	// Before is the time at or before which a day must have ended to be archived. It must be in
	// the past.
	Before time.Time
	// To is where the files go.
	To Destination
	// Drop removes each day of the audit log from the database after it was archived: its partition is
	// detached before, and dropped afterwards.
	Drop bool
	// Now is the present time. The zero time is that of the server.
	Now time.Time
	// Patience is how long a statement waits for a lock that another session holds, and so for
	// how long it makes others wait. Default: 5 s.
	Patience time.Duration
	// Done is called after each partition, also after one that was not archived. It may be nil.
	Done func(Day)
	// Warn is called at the end if upkeep may delete days before a run has archived them: if the
	// retention of the audit log is not a week longer than the age of the archived days. It may be nil.
	Warn func(error)
}

// Result is what became of a partition.
type Result string

// The results.
const (
	Archived  Result = "archived"  // it was written to a new file
	Replaced  Result = "replaced"  // it has more rows than its file had, and the file was replaced
	Unchanged Result = "unchanged" // the file was there already
	Empty     Result = "empty"     // it has no rows, so there is no file
	Skipped   Result = "skipped"   // see Problem
)

// Day is a partition that Run looked at.
type Day struct {
	Day       string  `json:"day"` // such as 2026-08-01, in UTC
	Partition string  `json:"partition"`
	Result    Result  `json:"outcome"`
	Dropped   bool    `json:"dropped"`
	File      string  `json:"file,omitempty"` // its name in the destination
	Rows      int64   `json:"rows"`
	Bytes     int64   `json:"bytes"` // the size of the file
	Seconds   float64 `json:"seconds"`
	Problem   string  `json:"problem,omitempty"`
}

// margin is by how much the retention of the audit log must exceed the age at which days are
// archived, so that upkeep does not delete a day before a run that failed is repaired.
const margin = 7 * 24 * time.Hour

const defaultPatience = 5 * time.Second

// lockKey is the advisory lock that a run holds: the first 8 bytes of the SHA-256 of
// "pg_ratelimit archive".
const lockKey int64 = -5131800380699130006

// ErrRunning is the error of a run while another one works on the same database.
var ErrRunning = errors.New("another archive of this database is running: wait until it ends")

// Run archives the days that ended before o.Before. It returns what it did, also with an error.
// A problem with one partition does not keep it from archiving the others; the error tells of
// it at the end. The connection must not be shared and must not be to a pooler that gives each
// transaction another session.
func Run(ctx context.Context, conn *pgx.Conn, o Options) ([]Day, error) {
	if o.Patience <= 0 {
		o.Patience = defaultPatience
	}
	if err := prepareSession(ctx, conn, o.Patience); err != nil {
		return nil, err
	}
	defer unlock(ctx, conn)
	if o.Now.IsZero() {
		if err := conn.QueryRow(ctx, "SELECT now()").Scan(&o.Now); err != nil {
			return nil, err
		}
	}
	if !o.Before.Before(o.Now) {
		return nil, &ratelimit.FieldError{Field: "--before", Value: o.Before.UTC().Format(time.RFC3339), Want: "in the past"}
	}
	if err := o.To.prepare(ctx); err != nil {
		return nil, err
	}
	if err := checkOwner(ctx, conn); err != nil {
		return nil, err
	}
	all, err := partitions(ctx, conn)
	if err != nil {
		return nil, err
	}
	var days []Day
	var blocked *problem
	skipped := 0
	for _, p := range all {
		if p.day.Add(dayLength).After(o.Before) {
			continue
		}
		w := work{conn: conn, options: o, partition: p, blocked: blocked, day: Day{Day: dayName(p.day), Partition: p.name, Result: Skipped}}
		day, err := w.run(ctx)
		blocked = w.blocked
		days = append(days, day)
		if o.Done != nil {
			o.Done(day)
		}
		if err != nil {
			return days, fmt.Errorf("%s: %w", day.Partition, err)
		}
		if day.Problem != "" {
			skipped++
		}
	}
	if skipped > 0 {
		err = fmt.Errorf("%d of %d partitions could not be archived as asked", skipped, len(days))
	}
	return days, errors.Join(err, checkRetention(ctx, conn, o))
}

// prepareSession sets the session up and takes the lock.
func prepareSession(ctx context.Context, conn *pgx.Conn, patience time.Duration) error {
	for _, setting := range []string{fmt.Sprintf("lock_timeout = %d", max(1, patience.Milliseconds())), "statement_timeout = 0", "idle_session_timeout = 0", "jit = off", "timezone = 'UTC'"} {
		if _, err := conn.Exec(ctx, "SET "+setting); err != nil {
			return err
		}
	}
	// The server notices that this process was killed, and frees the lock. Servers on some
	// systems cannot do that.
	if _, err := conn.Exec(ctx, "SET client_connection_check_interval = '1s'"); err != nil && ctx.Err() != nil {
		return err
	}
	_, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", lockKey)
	if busy(err) {
		return ErrRunning
	}
	return err
}

// checkOwner returns an error if the role does not own the audit log. Partitions have privileges of
// their own, which are those of the owner.
func checkOwner(ctx context.Context, conn *pgx.Conn) error {
	var role, owner string
	err := conn.QueryRow(ctx, "SELECT current_user, c.relowner::regrole::text FROM pg_class c WHERE c.oid = to_regclass('rate_limit_audit') AND NOT pg_has_role(c.relowner, 'USAGE')").Scan(&role, &owner)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("the role %q may not archive: use the role that owns the tables, %s, or make the role a member of it: GRANT %s TO %s",
			role, owner, owner, pgx.Identifier{role}.Sanitize())
	}
	return err
}

// unlock frees the lock. The end of the session does that too.
func unlock(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = conn.Exec(ctx, "SELECT pg_advisory_unlock($1)", lockKey)
}

// checkRetention warns if upkeep may delete days before they are archived.
func checkRetention(ctx context.Context, conn *pgx.Conn, o Options) error {
	var deletedBefore time.Time
	err := conn.QueryRow(ctx, "SELECT $1::timestamptz - keep FROM rate_limit_retention WHERE what = 'audit'", o.Now).Scan(&deletedBefore)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil || o.Warn == nil || o.Before.Sub(deletedBefore) >= margin {
		return err
	}
	o.Warn(&ratelimit.FieldError{
		Field: "--before", Value: o.Before.UTC().Format(time.RFC3339),
		Want: fmt.Sprintf("%s or later. Upkeep deletes days of the audit log after their retention (rate_limit_retention), archived or not, "+
			"and a week must be left to repair an archive that fails. Archive younger days, or raise the retention: "+
			"retention { audit ... } in the configuration, or UPDATE rate_limit_retention SET keep = ... WHERE what = 'audit'",
			deletedBefore.Add(margin).UTC().Format(time.RFC3339)),
	})
	return nil
}
