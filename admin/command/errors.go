package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgratelimit/pg-ratelimit/admin/migrate"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
)

// describeError replaces an error of the server with an error that names the cause and the remedy. Other
// errors, and nil, are returned unchanged.
func (c *invocation) describeError(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	switch pgErr.Code {
	case pg.UndefinedTable, pg.UndefinedColumn, pg.UndefinedFunction:
		if state, err := migrate.Read(context.Background(), c.conn); err == nil && state.Err() != nil &&
			!errors.Is(state.Err(), schema.ErrMissing) {
			return state.Err()
		}
		return fmt.Errorf("tables are missing, or older than this program (%s): make them with: "+
			"%s migrate", pgErr.Message, pg.Program)
	case pg.InsufficientPrivilege:
		if pg.IsRowSecurity(pgErr.Code, pgErr.Message) {
			return fmt.Errorf("%s: %s", pgErr.Message, pg.RowSecurityHint)
		}
		role := c.conn.Config().User
		return fmt.Errorf("the role %q may not do this: %s: archive, forget and migrate need the owner of "+
			"the tables, who can let the role do the rest: SELECT rate_limit_grant('%s', 'administrator')",
			role, pgErr.Message, strings.ReplaceAll(role, "'", "''"))
	case pg.Untranslatable:
		return fmt.Errorf("%s (%s)", pg.EncodingHint, pgErr.Message)
	case pg.DependentObjects:
		return fmt.Errorf("another program's objects depend on the tables: %s", pgErr.Detail)
	case pg.LockNotAvailable:
		return c.lockTimeoutError()
	case pg.DeadlockDetected:
		return errors.New("another session changes the same rows: try again")
	case pg.ReadOnlyTransaction:
		return fmt.Errorf("the server is read-only: %s: use the primary", pgErr.Message)
	}
	if name := pgErr.ConstraintName; strings.Contains(name, "_must_") || strings.Contains(name, "_needs_") {
		text := strings.ReplaceAll(name, "_", " ")
		// The detail of a CHECK is left out, because it is the whole row.
		if pgErr.Code != pg.CheckViolation && pgErr.Detail != "" {
			text += ": " + pgErr.Detail
		}
		return errors.New(text)
	}
	if pgErr.Hint != "" {
		return fmt.Errorf("%s (%s)", pgErr.Message, pgErr.Hint)
	}
	return errors.New(pgErr.Message)
}

// holdersSQL selects the sessions that may block this one: those that hold a lock on our tables, wait for no
// lock themselves, and are in a transaction that began at least the duration $1 ago. If $2 is true, the locks
// of readers count also, because they block a migration. The server may hide the state and the times of
// another role's session; the statement then selects the session without them.
const holdersSQL = `SELECT string_agg(DISTINCT concat_ws(', ',
	coalesce('pid ' || l.pid, 'a prepared transaction'),
	'application ' || nullif(a.application_name, ''), 'role ' || a.usename, a.state,
	'transaction since ' || date_trunc('second', a.xact_start),
	'statement since ' || date_trunc('second', a.query_start)), ' or ')
FROM pg_locks l JOIN pg_class c ON c.oid = l.relation LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.granted AND c.relname LIKE 'rate\_limit\_%' AND c.relkind IN ('r', 'p')
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
	AND l.pid IS DISTINCT FROM pg_backend_pid() AND coalesce(cardinality(pg_blocking_pids(l.pid)), 0) = 0
	AND coalesce(a.xact_start <= clock_timestamp() - $1::interval, true)
	AND ($2 OR l.mode <> 'AccessShareLock')`

// lockTimeoutError returns the error for a lock timeout. The error names the sessions that may hold the lock:
// those with a transaction that is nearly as old as the wait for the lock.
func (c *invocation) lockTimeoutError() error {
	waited := time.Since(c.lockWaitStart)
	minAge := fmt.Sprintf("%d microseconds", waited.Microseconds()*9/10)
	var holders *string
	advice := "another session, which has ended or is not visible: try again later"
	err := c.conn.QueryRow(context.Background(), holdersSQL, minAge, c.cmd.Name() == "migrate").Scan(&holders)
	if err == nil && holders != nil {
		advice = *holders + ": end that session with pg_terminate_backend, or try again later"
	}
	return fmt.Errorf("waited %s for a lock of %s", waited.Round(time.Second), advice)
}
