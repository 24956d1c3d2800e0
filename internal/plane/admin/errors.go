package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

// The SQLSTATEs that mean something else to people than the server says.
const (
	insufficientPrivilege = "42501"
	undefinedFunction     = "42883"
	undefinedTable        = "42P01"
	undefinedColumn       = "42703"
	featureNotSupported   = "0A000"
	readOnlyTransaction   = "25006"
	dependentObjects      = "2BP01"
	lockNotAvailable      = "55P03"
	deadlockDetected      = "40P01"
	classIntegrity        = "23"
	uniqueViolation       = "23505"
	checkViolation        = "23514"
)

// oldestServer is the oldest major version of Postgres that can have the tables of the policy.
const oldestServer = 15

// ErrNotFound is wrapped by the errors about a rule, user, key, ban or counter that is not in
// the database.
var ErrNotFound = errors.New("not found")

// errDeadlock is that the server ended a transaction that waited for another one, which waited for it, or that made
// a row that another one has made meanwhile.
var errDeadlock = errors.New("another session changes the same rows: try again")

// notFound is an error that wraps ErrNotFound. Its text is only the given one.
type notFound string

func (e notFound) Error() string        { return string(e) }
func (e notFound) Is(target error) bool { return target == ErrNotFound }

// failure says what an error of the server means.
func (d *Database) failure(err error) error {
	var failed *pgconn.PgError
	if !errors.As(err, &failed) { // nil, or not of the server
		return err
	}
	major := d.major()
	isOld := major > 0 && major < oldestServer
	switch failed.Code {
	case undefinedTable, undefinedColumn, undefinedFunction:
		var others *string
		if d.conn.QueryRow(context.Background(), schema.Others).Scan(&others) == nil && others != nil {
			return fmt.Errorf("%s: %s", *others, schema.OthersHint)
		}
		missing := missingPart(failed.Message)
		if missing == policyTables && isOld {
			return tooOld(major)
		}
		return fmt.Errorf("%s missing, or older than this program (%s): make them with: caddy pg-ratelimit migrate", missing, failed.Message)
	case insufficientPrivilege:
		return fmt.Errorf("the role %q may not do this: %s: use the administrator's role, see Roles in docs/policy.md", d.conn.Config().User, failed.Message)
	case dependentObjects:
		return fmt.Errorf("something of another program depends on the tables: %s", failed.Detail)
	case lockNotAvailable:
		return &lockError{}
	case deadlockDetected:
		return errDeadlock
	case readOnlyTransaction:
		return fmt.Errorf("the server is read-only: %s: use the primary", failed.Message)
	case featureNotSupported:
		if isOld {
			return tooOld(major)
		}
	}
	if failed.Code == uniqueViolation && strings.HasSuffix(failed.ConstraintName, "_pkey") {
		return errDeadlock
	}
	if name := failed.ConstraintName; strings.HasPrefix(failed.Code, classIntegrity) && (strings.Contains(name, "_must_") || strings.Contains(name, "_needs_")) {
		broken := &constraintError{name: name}
		// Of a check, the detail is the whole row.
		if failed.Code != checkViolation {
			broken.detail = failed.Detail
		}
		return broken
	}
	if failed.Hint != "" {
		return fmt.Errorf("%s (%s)", failed.Message, failed.Hint)
	}
	return errors.New(failed.Message)
}

const policyTables = "the tables of the policy are"

// missingPart says what is missing by a message of the server. Servers that are too old for the policy can have the
// other parts.
func missingPart(message string) string {
	for _, name := range []string{"rate_limit_nodes", "rate_limit_proxies", "rate_limit_pause", "n.epoch"} {
		if strings.Contains(message, name) {
			return "the tables of the registry of proxies are"
		}
	}
	for _, name := range []string{"rate_limit_audit", "rate_limit_usage", "rate_limit_upkeep"} {
		if strings.Contains(message, name) {
			return "the tables of the history are"
		}
	}
	return policyTables
}

// constraintError is a constraint that a row would break. The name of the constraint says what
// is wrong: mode_must_be_enforce_or_shadow_or_off.
type constraintError struct{ name, detail string }

func (e *constraintError) Error() string {
	text := strings.ReplaceAll(e.name, "_", " ")
	if e.detail != "" {
		text += ": " + e.detail
	}
	return text
}

// withValue is an error that names the value of a column that has caused it, and the column as people see it, if the error
// is a constraintError about the column.
func withValue(err error, column, shown, value string) error {
	var broken *constraintError
	if !errors.As(err, &broken) {
		return err
	}
	for _, verb := range []string{"must", "needs"} {
		if want, isAbout := strings.CutPrefix(broken.name, column+"_"+verb+"_"); isAbout {
			return fmt.Errorf("%s: %q: %s %s", shown, value, verb, strings.ReplaceAll(want, "_", " "))
		}
	}
	return err
}

func tooOld(major int) error {
	return fmt.Errorf("the policy needs Postgres %d or newer, and the server is %d: only counters work there", oldestServer, major)
}

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
