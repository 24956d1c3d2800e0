package admin

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgratelimit/pg-ratelimit/internal/core/session"
	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// connectTimeout is for a DSN without a connect_timeout.
const connectTimeout = 10 * time.Second

// Database is a connection to the database of a policy. One goroutine at a time may use it.
type Database struct {
	conn  *pgx.Conn
	dsn   string
	known map[string]bool // the tables that hasTable has found

	// The DSNs of the policy and of the counters if they are elsewhere, else "".
	policy, counters string
	other            *Database // the connection to that of the policy; nil before the first use
}

// Elsewhere says where the policy and the counters are, so that what needs more than this database can be shown.
func (d *Database) Elsewhere(policy, counters string) {
	if policy != d.dsn {
		d.policy = policy
	}
	if counters != d.dsn {
		d.counters = counters
	}
}

// atPolicy is the database of the policy, which is elsewhere. Close closes it, too.
func (d *Database) atPolicy(ctx context.Context) (*Database, error) {
	if d.other != nil && !d.other.conn.IsClosed() {
		return d.other, nil
	}
	at, err := Open(ctx, d.policy)
	if err == nil {
		d.other = at
	}
	return at, err
}

// Open connects to a database by its DSN: a postgres:// URL or key=value pairs. An error never contains the password.
func Open(ctx context.Context, dsn string) (*Database, error) {
	// The driver of the proxies checks the DSN, so that both accept the same ones.
	db, err := pgxdb.Open(dsn, pgxdb.Options{})
	if err != nil {
		return nil, err
	}
	db.Close()
	pool, err := pgxpool.ParseConfig(dsn) // a DSN may have settings of a pool
	if err != nil {
		return nil, err
	}
	config := pool.ConnConfig
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "caddy pg-ratelimit"
	}
	config.RuntimeParams["client_encoding"] = "UTF8"
	config.RuntimeParams["timezone"] = "UTC" // times in texts that the server makes
	// A pooler may give each transaction another session.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return &Database{conn: conn, dsn: dsn, known: map[string]bool{}}, nil
}

// Close ends the connection.
func (d *Database) Close() {
	if d.other != nil {
		d.other.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = d.conn.Close(ctx) // the server notices a lost connection by itself
}

// Conn is the connection, for packages that do more than this one. Close closes it.
func (d *Database) Conn() *pgx.Conn { return d.conn }

// Now is the time by the clock of the server, which is the one that decides.
func (d *Database) Now(ctx context.Context) (time.Time, error) {
	now, err := value[time.Time](ctx, d, "SELECT now()")
	if err != nil {
		return time.Time{}, err
	}
	return *now, nil
}

// hasTable reports whether there is a table of this name. It asks once for one that is there.
func (d *Database) hasTable(ctx context.Context, name string) (bool, error) {
	if d.known[name] {
		return true, nil
	}
	found, err := value[bool](ctx, d, "SELECT to_regclass($1::text) IS NOT NULL", name)
	d.known[name] = err == nil && *found
	return d.known[name], err
}

// HasPolicy reports whether there are the tables of the policy.
func (d *Database) HasPolicy(ctx context.Context) (bool, error) {
	return d.hasTable(ctx, "rate_limit_rules")
}

// rows runs a query and returns its rows. The columns of a row are the fields of T, in their
// order. Errors are for people.
func rows[T any](ctx context.Context, d *Database, sql string, args ...any) ([]T, error) {
	return query(ctx, d, pgx.RowToStructByPos[T], sql, args)
}

// row is rows for a query that has one row or none: nil.
func row[T any](ctx context.Context, d *Database, sql string, args ...any) (*T, error) {
	return first(rows[T](ctx, d, sql, args...))
}

// value is row for a query with one column.
func value[T any](ctx context.Context, d *Database, sql string, args ...any) (*T, error) {
	return first(values[T](ctx, d, sql, args...))
}

func first[T any](all []T, err error) (*T, error) {
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}

// values runs a query with one column.
func values[T any](ctx context.Context, d *Database, sql string, args ...any) ([]T, error) {
	return query(ctx, d, pgx.RowTo[T], sql, args)
}

// query runs a query, and reads each of its rows with read.
func query[T any](ctx context.Context, d *Database, read pgx.RowToFunc[T], sql string, args []any) (all []T, err error) {
	for tries := 0; ; tries++ {
		err = d.send(ctx, sql, args, func(result pgx.Rows) (err error) {
			all, err = pgx.CollectRows(result, read)
			return shardMoved(err)
		})
		if !errors.Is(err, errShardMoved) || tries == 10 || !sleep(ctx, lockAttempt) {
			return all, err
		}
	}
}

// execute runs a command and returns how many rows it changed.
func (d *Database) execute(ctx context.Context, sql string, args ...any) (changed int64, err error) {
	err = d.send(ctx, sql, args, func(result pgx.Rows) error {
		result.Close()
		changed = result.CommandTag().RowsAffected()
		return result.Err()
	})
	return changed, err
}

// send runs a statement. Errors are for people.
func (d *Database) send(ctx context.Context, sql string, args []any, read func(result pgx.Rows) error) error {
	var batch pgx.Batch // without a transaction that runs, a batch is one
	if d.conn.PgConn().TxStatus() == 'I' {
		for _, guard := range session.Texts() {
			batch.Queue(guard)
		}
		batch.Queue("SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', '0', true)", patience.String())
	}
	batch.Queue(sql, args...).Query(read)
	return d.findHolders(ctx, d.failure(d.conn.SendBatch(ctx, &batch).Close()), false)
}

// work is a sequence of statements. After one that has failed, the others do nothing and find nothing.
type work struct {
	*Database
	ctx context.Context
	err error // of the first that has failed
}

func (d *Database) work(ctx context.Context) *work { return &work{Database: d, ctx: ctx} }

// fail is a failure of a step that is no statement.
func (w *work) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// execute runs a command and returns how many rows it changed.
func (w *work) execute(sql string, args ...any) (changed int64) {
	if w.err == nil {
		changed, w.err = w.Database.execute(w.ctx, sql, args...)
	}
	return changed
}

// lacks reports whether a query with one column finds nothing.
func (w *work) lacks(sql string, args ...any) bool {
	return len(some[bool](w, sql, args...)) == 0 && w.err == nil
}

// some runs a query with one column, and returns its values.
func some[T any](w *work, sql string, args ...any) (all []T) {
	if w.err == nil {
		all, w.err = values[T](w.ctx, w.Database, sql, args...)
	}
	return all
}

// list runs a query, and returns its rows.
func list[T any](w *work, sql string, args ...any) (all []T) {
	if w.err == nil {
		all, w.err = rows[T](w.ctx, w.Database, sql, args...)
	}
	return all
}

// together runs commands in one transaction, all or none. They run again if the server ends
// the transaction to break a deadlock.
func (d *Database) together(ctx context.Context, commands func(w *work)) error {
	// The end of the transaction checks rules, and may fail as well.
	return d.inTransaction(ctx, commands, func(tx pgx.Tx) error { return d.failure(tx.Commit(ctx)) })
}

// undone runs commands as together does, in a transaction that is rolled back.
func (d *Database) undone(ctx context.Context, commands func(w *work)) error {
	return d.inTransaction(ctx, commands, func(tx pgx.Tx) error {
		_ = tx.Rollback(ctx) // a connection that is lost has no transaction
		return nil
	})
}

// mostDeadlocks is how often commands run at most.
const mostDeadlocks = 5

// inTransaction runs commands in a transaction of their own, or in the one that runs already.
func (d *Database) inTransaction(ctx context.Context, commands func(w *work), end func(pgx.Tx) error) error {
	w := d.work(ctx)
	if d.conn.PgConn().TxStatus() == 'T' {
		commands(w)
		return w.err
	}
	for attempt := 1; ; attempt++ {
		tx, err := d.conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: "BEGIN; " +
			"SET LOCAL jit = off; SET LOCAL lock_timeout = '" + patience.String() + "'; SET LOCAL statement_timeout = 0"})
		if err != nil {
			return d.failure(err)
		}
		w.err = nil
		if commands(w); w.err != nil {
			_ = tx.Rollback(ctx) // the first error says more
		} else {
			w.err = end(tx)
		}
		if !errors.Is(w.err, errDeadlock) || attempt == mostDeadlocks {
			return d.findHolders(ctx, w.err, false)
		}
	}
}

// endSQL and beginSQL are the SQL for the end and the begin of something, and NULL for no bound.
// JSON has the years from 0 to 9999 only. What ends later never ends, as proxies have it.
func endSQL(expression string) string {
	return "CASE WHEN " + expression + " < '9999-12-31 00:00+00' THEN greatest(" + expression + ", '0001-01-02 00:00+00') END"
}

func beginSQL(expression string) string {
	return "CASE WHEN " + expression + " > '0001-01-02 00:00+00' THEN least(" + expression + ", '9999-12-30 00:00+00') END"
}

// proxyDB returns a connection as proxies have one, for the packages of the proxies. It
// connects when it is first used.
func (d *Database) proxyDB() (*pgxdb.DB, error) {
	return pgxdb.Open(d.dsn, pgxdb.Options{MaxConns: 1})
}

// policyOptions are how proxies compile rules.
var policyOptions = policy.Options{SecretHeader: settings.CredentialHeader}
