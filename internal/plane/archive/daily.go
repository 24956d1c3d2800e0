package archive

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// retryAfter is how long after the begin of a run that failed the next one may begin.
const retryAfter = "1 hour"

// Schedule says what Daily does.
type Schedule struct {
	Node           string // the name of this process
	To             string // see NewDestination
	Before, Expire time.Duration
	Drop           bool
	Warn           func(error)
}

// Daily archives as Run does, unless a process has done so today (in UTC), has begun and not succeeded less than an
// hour ago, or is at it. It reports whether it ran, and rate_limit_archives has what became of the run. The error is that of
// the run, or says that the database could not be asked.
func Daily(ctx context.Context, conn *pgx.Conn, s Schedule) (ran bool, err error) {
	// The lock of the run, which the session can take twice, keeps others from beginning one.
	err = prepareSession(ctx, conn, defaultPatience)
	if errors.Is(err, ErrRunning) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unlock(ctx, conn)
	if err := checkOwner(ctx, conn); err != nil {
		return false, err
	}
	err = conn.QueryRow(ctx, `INSERT INTO rate_limit_archives AS a (target, node) VALUES ($1, $2)
ON CONFLICT (target) DO UPDATE SET node = excluded.node, began_at = now()
WHERE date_trunc('day', coalesce(a.succeeded_at, '-infinity')) < date_trunc('day', now())
	AND (a.succeeded_at >= a.began_at OR a.began_at < now() - interval '`+retryAfter+`') RETURNING true`, s.To, s.Node).Scan(&ran)
	if missing(err) {
		err = errors.New("there is no table rate_limit_archives: run caddy pg-ratelimit migrate")
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	days, failure := s.run(ctx, conn)
	var wrong *ratelimit.FieldError
	if errors.As(failure, &wrong) && strings.HasPrefix(wrong.Field, "--") { // the flag of the command
		failure = &ratelimit.FieldError{Field: "archive", Value: wrong.Value, Want: strings.ReplaceAll(wrong.Want, "--", "")}
	} else if failure != nil && strings.HasPrefix(failure.Error(), "--to: ") {
		failure = errors.New("archive" + strings.TrimPrefix(failure.Error(), "--to"))
	}
	// What was done is recorded also if the process ends.
	return true, errors.Join(failure, record(context.WithoutCancel(ctx), conn, s.To, days, failure))
}

func (s Schedule) run(ctx context.Context, conn *pgx.Conn) ([]Day, error) {
	to, err := NewDestination(s.To)
	if err != nil {
		return nil, err
	}
	o := Options{To: to, Drop: s.Drop, Warn: s.Warn}
	if err := conn.QueryRow(ctx, "SELECT now()").Scan(&o.Now); err != nil {
		return nil, err
	}
	o.Before = o.Now.Add(-s.Before)
	if s.Expire > 0 {
		o.Expire = o.Now.Add(-s.Expire)
	}
	days, err := Run(ctx, conn, o)
	for _, d := range days {
		if d.Problem != "" && !strings.Contains(err.Error(), d.Problem) {
			err = fmt.Errorf("%w\n%s: %s", err, d.Partition, d.Problem)
		}
	}
	return days, err
}

// record writes what became of a run.
func record(ctx context.Context, conn *pgx.Conn, target string, days []Day, failure error) error {
	ctx, cancel := context.WithTimeout(ctx, defaultPatience)
	defer cancel()
	var problem *string
	if failure != nil {
		text := failure.Error()
		problem = &text
	}
	files := 0
	for _, d := range days {
		if d.Result == Archived || d.Result == Replaced {
			files++
		}
	}
	_, err := conn.Exec(ctx, `UPDATE rate_limit_archives SET succeeded_at = CASE WHEN $2::text IS NULL THEN clock_timestamp() ELSE succeeded_at END,
failed_at = CASE WHEN $2::text IS NOT NULL THEN clock_timestamp() END, problem = left($2, 2000), files = $3 WHERE target = $1`, target, problem, files)
	return err
}
