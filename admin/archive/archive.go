// Package archive copies past days of the audit log and of the ledger to Parquet files, and optionally drops
// these days from the database.
//
// The database keeps both only for their retention, and the files keep them for longer. Run copies each
// partition that ended before a time to a Destination, which is a folder or an S3 bucket, in one transaction
// for each partition. Run returns a Day with a Result for each partition.
//
// A day in UTC becomes one file, such as audit/2026/08/2026-08-01.parquet with the columns of the table, and
// ledger/2026/08/2026-08-01.parquet with those of rate_limit_ledger_rows. Rows of that day that are written
// to the table after its archive go to 2026-08-01-2.parquet, and so on, because Run never replaces or deletes
// a file.
//
// Run reads the rows of a partition, skips the rows that the files of the day contain, and writes the
// remaining rows to a temporary file. Then Run reads the file back, compares all values with those of the
// table by a digest, and stores the file under the next free name. With Options.Drop, Run then drops the
// table and commits. Each row is therefore in exactly one file, even if the process is killed:
//
//   - Before the file is stored, only a temporary file exists, which the next run overwrites.
//   - Between the storing of the file and the commit of the drop, the table still has all rows. The next
//     run finds the rows in the file, and does not write them again.
//   - The commit of the drop is one step, after which the rows are in the file alone.
//
// With Drop, the table is locked against writers from the read to the drop, so that no row is added in
// between. A writer for that day waits, and then creates a new partition. Run never detaches a partition: its
// rows stay in the table until the transaction that compared them drops it. Without Drop, writers continue.
// Run also archives tables that an administrator has detached from the audit log, and finds them by their
// names.
//
// The build tag nos3 omits the client for S3.
package archive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Options configure Run.
type Options struct {
	// Before selects the days to archive: all days that ended at or before this time. It must be in the past.
	Before time.Time
	// Destination receives the files.
	Destination Destination
	// Drop makes Run drop each day that is past its retention after all its rows are in files.
	Drop bool
	// Now replaces the server's clock. The zero time means the server's clock.
	Now time.Time
	// Patience bounds the time that a statement waits for a lock of another session. 0 means 5 s.
	Patience time.Duration
	// Report, if not nil, is called with the result of each partition as soon as Run has handled it.
	Report func(Day)
	// Warn, if not nil, is called if upkeep may delete a selected day within repairTime. If this run fails,
	// an operator then has less than repairTime to repair it.
	Warn func(error)
}

// Result describes the effect of Run on a partition.
type Result string

// The results.
const (
	Archived  Result = "archived"  // rows were written to a new file
	Unchanged Result = "unchanged" // all rows were in files already
	Empty     Result = "empty"     // the partition has no rows
	Skipped   Result = "skipped"   // an error occurred: see Day.Problem
)

// Day describes a partition that Run handled.
type Day struct {
	Day       string  `json:"day"` // such as 2026-08-01, in UTC
	Partition string  `json:"partition"`
	Result    Result  `json:"result"`
	Dropped   bool    `json:"dropped"`
	File      string  `json:"file,omitempty"` // name in the destination
	Rows      int64   `json:"rows"`           // rows of the partition
	Bytes     int64   `json:"bytes"`          // size of the file
	Seconds   float64 `json:"seconds"`
	Problem   string  `json:"problem,omitempty"`
}

// repairTime is the minimum time to repair a failed run before upkeep deletes its days.
const repairTime = 7 * 24 * time.Hour

const defaultPatience = 5 * time.Second

// lockKey identifies the advisory lock that a run holds: the first 8 bytes of the SHA-256 of "pg_ratelimit
// archive".
const lockKey int64 = -5131800380699130006

// ErrRunning is returned by Run while another run archives the same database.
var ErrRunning = errors.New("another archive of this database is running: wait until it ends")

// Run archives the days that ended at or before o.Before, and returns the partitions that it handled and that
// have rows or are dropped, even with an error. After an error that concerns one partition alone, Run
// continues with the next partition. The connection must not be shared, and must not lead to a pooler that
// may run each transaction in another session, because the lock of Run belongs to the session.
func Run(ctx context.Context, conn *pgx.Conn, o Options) ([]Day, error) {
	if o.Patience <= 0 {
		o.Patience = defaultPatience
	}
	if err := prepareSession(ctx, conn, o.Patience); err != nil {
		return nil, err
	}
	_, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", lockKey)
	if sqlState(err) == pg.LockNotAvailable {
		return nil, ErrRunning
	} else if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		// If this statement fails, the end of the session releases the lock.
		_, _ = conn.Exec(ctx, "SELECT pg_advisory_unlock($1)", lockKey)
	}()
	if o.Now.IsZero() {
		if err := conn.QueryRow(ctx, "SELECT now()").Scan(&o.Now); err != nil {
			return nil, err
		}
	}
	if !o.Before.Before(o.Now) {
		return nil, beforeError(o.Before, "in the past")
	}
	candidates, err := selected(ctx, conn, o)
	if err := errors.Join(err, o.Destination.check(ctx)); err != nil {
		return nil, err
	}
	var days []Day
	skipped := 0
	for _, p := range candidates {
		start := time.Now()
		day := Day{Day: dayName(p.day), Partition: p.name, Result: Skipped}
		err := archiveDay(ctx, conn, o, p, &day)
		day.Seconds = time.Since(start).Seconds()
		if err != nil {
			day.Problem = err.Error()
			skipped++
		}
		if day.Result == Empty && !day.Dropped {
			continue // each day has a partition of the ledger
		}
		days = append(days, day)
		if o.Report != nil {
			o.Report(day)
		}
		// Continue only if the error concerns this partition alone.
		var partial *problem
		if err != nil && (ctx.Err() != nil || conn.IsClosed() ||
			!errors.As(err, &partial) && sqlState(err) == "") {
			return days, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if skipped > 0 {
		return days, fmt.Errorf("%d of %d partitions could not be archived", skipped, len(days))
	}
	return days, nil
}

// prepareSession changes the settings of a session. patience bounds the wait for a lock.
func prepareSession(ctx context.Context, conn *pgx.Conn, patience time.Duration) error {
	// With the last two settings, files have the rows in physical order: only one process scans the table,
	// and it begins at the first page.
	_, err := conn.Exec(ctx, fmt.Sprintf("SET lock_timeout = %d; SET statement_timeout = 0; "+
		"SET idle_session_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET jit = off; "+
		"SET timezone = 'UTC'; SET synchronize_seqscans = off; SET max_parallel_workers_per_gather = 0",
		max(1, patience.Milliseconds())))
	if err != nil {
		return err
	}
	// With this setting, the server detects that this process was killed, and releases the lock. An error is
	// ignored, because servers on some systems do not support the setting.
	_, err = conn.Exec(ctx, "SET client_connection_check_interval = '1s'")
	if err != nil && ctx.Err() != nil {
		return err
	}
	return nil
}

// beforeError returns an error for Options.Before.
func beforeError(before time.Time, want string) error {
	return &ratelimit.FieldError{Field: "--before", Value: before.UTC().Format(time.RFC3339), Want: want}
}

// checkOwner returns an error if the role lacks the privileges of the owner of a table. Grants on a table do
// not extend to its partitions, so only the owner can read and drop them.
func checkOwner(ctx context.Context, conn *pgx.Conn, t *table) error {
	var role, owner string
	err := conn.QueryRow(ctx, "SELECT current_user, relowner::regrole::text FROM pg_class "+
		"WHERE oid = to_regclass($1) AND NOT pg_has_role(relowner, 'USAGE')", t.name).Scan(&role, &owner)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("the role %q may not archive: use the role that owns the tables, %s, or make the "+
			"role a member of it: GRANT %s TO %s",
			role, owner, owner, pgx.Identifier{role}.Sanitize())
	}
	return err
}

// selected returns the partitions to archive of all tables.
func selected(ctx context.Context, conn *pgx.Conn, o Options) ([]partition, error) {
	var all []partition
	for _, t := range tables {
		candidates, err := t.partitions(ctx, conn)
		if sqlState(err) == pg.UndefinedTable || sqlState(err) == pg.UndefinedFunction {
			return nil, errors.New("the tables are missing: run the command migrate")
		} else if err != nil {
			return nil, err
		}
		if err := checkOwner(ctx, conn, t); err != nil {
			return nil, err
		}
		expired, err := expiry(ctx, conn, o, t)
		if err != nil {
			return nil, err
		}
		for _, p := range candidates {
			if end := p.day.Add(dayLength); !end.After(o.Before) {
				p.drops = o.Drop && !end.After(expired)
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// expiry returns the time before which days of a table are past their retention, or can be dropped if they
// are kept for ever. It warns if upkeep may delete a selected day within less than repairTime.
func expiry(ctx context.Context, conn *pgx.Conn, o Options, t *table) (time.Time, error) {
	var oldestKept time.Time
	err := conn.QueryRow(ctx, t.kept, o.Now).Scan(&oldestKept)
	if errors.Is(err, pgx.ErrNoRows) {
		return o.Now.Add(-t.late), nil
	}
	if err == nil && o.Warn != nil && o.Before.Sub(oldestKept) < repairTime {
		o.Warn(beforeError(o.Before,
			fmt.Sprintf("%s or later. Upkeep deletes days of the %s after their retention (%s), archived or "+
				"not, and a week must be left to repair an archive that fails. Archive younger days, or "+
				"lengthen the retention",
				oldestKept.Add(repairTime).UTC().Format(time.RFC3339), t.title, t.retention)))
	}
	return oldestKept, err
}

// problem is an error of one partition, after which Run continues with the next partition.
type problem struct{ text string }

func (p *problem) Error() string { return p.text }

// sqlState returns the SQLSTATE of an error, or "".
func sqlState(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
