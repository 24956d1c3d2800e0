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
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
)

// The SQLSTATEs that mean something else to people than the server says.
const (
	insufficientPrivilege = "42501"
	undefinedFunction     = "42883"
	untranslatable        = sqlstate.Untranslatable
	undefinedTable        = "42P01"
	undefinedColumn       = "42703"
	readOnlyTransaction   = "25006"
	dependentObjects      = "2BP01"
	lockNotAvailable      = "55P03"
	deadlockDetected      = "40P01"
	classIntegrity        = "23"
	uniqueViolation       = "23505"
	checkViolation        = "23514"
)

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
	switch failed.Code {
	case undefinedTable, undefinedColumn, undefinedFunction:
		var others *string
		if d.conn.QueryRow(context.Background(), schema.Others).Scan(&others) == nil && others != nil {
			return fmt.Errorf("%s: %s", *others, schema.OthersHint)
		}
		return fmt.Errorf("%s missing, or older than this program (%s): make them with: caddy pg-ratelimit migrate", missingPart(failed.Message), failed.Message)
	case insufficientPrivilege:
		return fmt.Errorf("the role %q may not do this: %s: use the administrator's role, see Roles in docs/policy.md", d.conn.Config().User, failed.Message)
	case untranslatable:
		return fmt.Errorf("%s (%s)", sqlstate.EncodingHint, failed.Message)
	case dependentObjects:
		return fmt.Errorf("something of another program depends on the tables: %s", failed.Detail)
	case lockNotAvailable:
		return &lockError{waited: patience}
	case deadlockDetected:
		return errDeadlock
	case readOnlyTransaction:
		return fmt.Errorf("the server is read-only: %s: use the primary", failed.Message)
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

// missingPart says what is missing by a message of the server.
func missingPart(message string) string {
	for _, name := range []string{"rate_limit_nodes", "rate_limit_proxies", "n.epoch"} {
		if strings.Contains(message, name) {
			return "the tables of the registry of proxies are"
		}
	}
	for _, name := range []string{"rate_limit_audit", "rate_limit_metrics", "rate_limit_upkeep"} {
		if strings.Contains(message, name) {
			return "the tables of the history are"
		}
	}
	return "the tables of the policy are"
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

// patience is how long a statement waits for a lock that another session holds.
const patience = 10 * time.Second

// holdersSQL returns the other sessions that have had a lock on our tables for the duration $1 or longer, and do not wait
// themselves. Reading is a lock, too, which only migrations wait for. Of a session of another role, the server may show
// neither the state nor the times.
const holdersSQL = `SELECT DISTINCT concat_ws(', ', coalesce('pid ' || l.pid, 'a prepared transaction'),
	'application ' || nullif(a.application_name, ''), 'role ' || a.usename, a.state,
	'transaction since ' || date_trunc('second', a.xact_start), 'statement since ' || date_trunc('second', a.query_start))
FROM pg_locks l JOIN pg_class c ON c.oid = l.relation LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.granted AND c.relname LIKE 'rate\_limit\_%' AND c.relkind IN ('r', 'p')
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND l.pid IS DISTINCT FROM pg_backend_pid() AND coalesce(cardinality(pg_blocking_pids(l.pid)), 0) = 0
	AND coalesce(a.xact_start <= clock_timestamp() - $1::interval, true) AND ($2 OR l.mode <> 'AccessShareLock')
ORDER BY 1`

// lockError is that a lock was waited for in vain.
type lockError struct {
	waited  time.Duration
	holders []string // that may have it; nil until the transaction has ended
}

func (e *lockError) Error() string {
	holders := strings.Join(e.holders, " or ")
	if holders == "" {
		holders = "no longer known which"
	}
	return fmt.Sprintf("waited %s for a lock that another session holds: %s: end it with pg_terminate_backend, or try again later", e.waited.Round(time.Second), holders)
}

// findHolders completes an error that is a *lockError, when no transaction runs.
func (d *Database) findHolders(ctx context.Context, err error, ofReaders bool) error {
	var locked *lockError
	if errors.As(err, &locked) && locked.holders == nil && d.conn.PgConn().TxStatus() == 'I' {
		result, _ := d.conn.Query(ctx, holdersSQL, intervalOf(locked.waited*9/10), ofReaders)
		locked.holders, _ = pgx.CollectRows(result, pgx.RowTo[string])
	}
	return err
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
