package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// invocation is one run of a command, for use by one goroutine.
type invocation struct {
	*globalFlags
	*commandSpec
	ctx         context.Context
	cmd         *cobra.Command
	args        []string
	conn        *pgx.Conn // nil before connect
	expandedDSN string    // set by connect
	emptyText   string    // replaces a table without rows
	// values maps the names of SQL parameters to the values of flags and arguments.
	values pgx.NamedArgs
	// printsKey makes show print API keys unredacted. Only a command that has created an API key sets
	// printsKey.
	printsKey bool
	// lockWaitStart is the earliest time at which a statement may have started to wait for a lock.
	lockWaitStart time.Time
	// transaction is the number of the last transaction that has changed rows, and committedAt its end.
	transaction *string
	committedAt time.Time
}

// run executes the command. Unless the command is offline, run first connects to the database, and parses the
// flags and arguments.
func (c *invocation) run() error {
	if c.offline {
		return c.runGo(c)
	}
	if err := c.connect(); err != nil {
		return err
	}
	defer c.close()
	err := c.readInputs()
	switch {
	case err != nil:
	case c.runGo != nil:
		err = c.runGo(c)
	default:
		err = c.list(c.sql)
	}
	if err == nil {
		c.awaitInForce()
	}
	return c.describeError(err)
}

// untilSignal returns a context that ends with c.ctx, or when a signal asks the command to end.
func (c *invocation) untilSignal() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(c.ctx, os.Interrupt, syscall.SIGTERM)
}

func (c *invocation) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.conn.Close(ctx) // after an error, the server detects the end of the connection by itself
}

// database returns the DSN of --dsn or of the environment, with its placeholders replaced.
func (g *globalFlags) database() (string, error) {
	dsn := cmp.Or(g.dsn, os.Getenv(settings.EnvDSN))
	switch dsn {
	case "":
		return "", invalid("dsn", "", "a database: give --dsn, or set "+settings.EnvDSN)
	case settings.MemoryDSN:
		return "", invalid("dsn", dsn, "a Postgres URL or key=value pairs: counters in memory are only in "+
			"the proxy")
	}
	return g.expand(dsn)
}

// connect connects to the database. An error never contains the password.
func (c *invocation) connect() (err error) {
	if c.expandedDSN, err = c.database(); err != nil {
		return err
	}
	pool, err := pgxdb.SessionConfig(c.expandedDSN, pg.Program) // a DSN may have settings of pools
	if err != nil {
		return err
	}
	config := pool.ConnConfig
	// The server parses and formats times.
	config.RuntimeParams["timezone"], config.RuntimeParams["datestyle"] = "UTC", "ISO"
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Code == pg.PolicyWarning {
			fmt.Fprintln(c.cmd.ErrOrStderr(), "Warning: "+redactKeys(n.Message))
		}
	}
	if c.conn, err = pgx.ConnectConfig(c.ctx, config); err != nil {
		err = fmt.Errorf("no connection to the database: %w", err)
		if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) {
			err = pg.LoginError(err, pgErr.Code, pgErr.Message)
		}
		return fmt.Errorf("dsn: %w", err)
	}
	return nil
}

const (
	// maxAttempts bounds the attempts of a transaction.
	maxAttempts = 10
	// lockTimeout is the lock_timeout of beginSQL.
	lockTimeout = 10 * time.Second
	// beginSQL overrides settings of the role or the database that would slow down or end statements, and
	// makes statements fail where row level security would hide rows. The locks of a machine that died are
	// released after a minute.
	beginSQL = "BEGIN; SET LOCAL jit = off; SET LOCAL row_security = off; SET LOCAL lock_timeout = '10s'; " +
		"SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = '1min'; " +
		"SET LOCAL timezone = 'UTC'"
)

// movedShard matches the server's error message for a table that Citus has moved to another server.
var movedShard = regexp.MustCompile(`relation "[^"]*rate_limit_[a-z]+_[0-9]+" does not exist`)

// errRollback makes inTransaction roll back and return nil.
var errRollback = errors.New("rolled back")

// inTransaction calls f in a transaction, and commits if f returns nil. After a deadlock, after the lock
// timeout of a function, and after Citus has moved a shard, inTransaction calls f again in a new transaction.
func (c *invocation) inTransaction(f func() error) error {
	for attempt := 1; ; attempt++ {
		c.lockWaitStart = time.Now()
		tx, err := c.conn.BeginTx(c.ctx, pgx.TxOptions{BeginQuery: beginSQL})
		if err != nil {
			return err
		}
		if err = f(); err == nil {
			c.transaction, err = c.scalar("pg_current_xact_id_if_assigned()")
		}
		if err == nil {
			err = tx.Commit(c.ctx) // deferred constraints may fail here
			c.committedAt = time.Now()
		} else {
			_ = tx.Rollback(c.ctx) // the first error is the cause
		}
		var pgErr *pgconn.PgError
		retryable := errors.As(err, &pgErr) &&
			(pgErr.Code == pg.DeadlockDetected || movedShard.MatchString(pgErr.Message) ||
				pgErr.Code == pg.LockNotAvailable && time.Since(c.lockWaitStart) < lockTimeout)
		if !retryable || attempt == maxAttempts || c.ctx.Err() != nil {
			if errors.Is(err, errRollback) {
				return nil
			}
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// rows returns the rows of a query as JSON objects, with their fields in the order of the columns.
func (c *invocation) rows(sql string) (rows []json.RawMessage, err error) {
	var list []byte
	sql = "WITH q AS (" + sql + ") SELECT coalesce(json_agg(q), '[]')::text FROM q"
	err = c.conn.QueryRow(c.ctx, sql, c.values).Scan(&list)
	if err == nil {
		err = json.Unmarshal(list, &rows)
	}
	return rows, err
}

// scalar returns the value of an SQL expression as text, or nil for NULL and for a query without rows.
func (c *invocation) scalar(sql string, args ...any) (*string, error) {
	var value *string
	err := c.conn.QueryRow(c.ctx, "SELECT ("+sql+")::text", args...).Scan(&value)
	return value, err
}

// list executes c.beforeSQL and then sql in one transaction, and prints the rows of sql. With singleRow, list
// prints the row as a list of fields, and with a doneText, a confirmation. With singleRow, doneText or
// failIfEmpty, list returns an error if sql returns no row.
func (c *invocation) list(sql string) error {
	rows, err := c.change(sql)
	switch {
	case err != nil:
		return err
	case len(rows) == 0 && (c.singleRow || c.doneText != "" || c.failIfEmpty):
		return c.missingError(c.name())
	case c.doneText != "":
		return c.printConfirmation(c.doneText)
	case c.singleRow:
		return c.show(rows[0])
	}
	return c.show(rows)
}

// change executes c.beforeSQL and then sql in one transaction, and returns the rows of sql.
func (c *invocation) change(sql string) (rows []json.RawMessage, err error) {
	err = c.inTransaction(func() (err error) {
		if c.beforeSQL != "" {
			if _, err := c.conn.Exec(c.ctx, c.beforeSQL, c.values); err != nil {
				return err
			}
		}
		rows, err = c.rows(sql)
		return err
	})
	return rows, err
}

// printConfirmation prints "The NOUN NAME is RESULT.", such as "The rule x is deleted." NAME is the first
// argument. After a result such as "renamed to", the second argument follows.
func (c *invocation) printConfirmation(result string) error {
	if strings.HasSuffix(result, " to") {
		result += " " + redactAndQuote(c.args[1])
	}
	if !c.json {
		return c.printf("The %s %s is %s.\n", c.noun, redactAndQuote(c.name()), result)
	}
	return c.show(struct {
		Name   string `json:"name"`
		Result string `json:"result"`
	}{c.name(), result})
}

// name returns the parsed first argument.
func (c *invocation) name() string { return c.value(argumentNames(c.use)[0]) }

// missingError returns the error for a name that selects no row.
func (c *invocation) missingError(name string) error {
	if c.noun == counterNoun { // do not quote the key, because it may be a secret
		return errors.New("there is no counter of this prefix and key, so its full quota is left")
	}
	return invalid(c.noun, name, "listed by: "+pg.Program+" "+cmp.Or(c.listedBy, c.noun+"s list"))
}

// apiKeys matches API keys in a text, including mistyped ones.
var apiKeys = regexp.MustCompile(`prl_[0-9A-Za-z]{5,}`)

// redactError redacts the API keys in an error, because a user may have passed an API key as the wrong
// argument. A redacted error does not wrap err.
func redactError(err error) error {
	if err == nil || !apiKeys.MatchString(err.Error()) {
		return err
	}
	return errors.New(redactKeys(err.Error()))
}

// redactKeys replaces each API key in text with "prl_...".
func redactKeys(text string) string { return apiKeys.ReplaceAllString(text, "prl_...") }
