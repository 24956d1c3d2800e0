package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// call is a run of a command.
type call struct {
	*tool
	*entry
	ctx  context.Context
	cmd  *cobra.Command
	args []string
	conn *pgx.Conn // nil of a command that is offline
	at   string    // the DSN
	now  time.Time // by the clock of the server, which is the one that decides
	// values are those of flags and arguments for SQL, by their names in it.
	values pgx.NamedArgs
	// printsKey: the command makes a key, and prints it.
	printsKey bool
	// began is when the wait for locks may have begun.
	began time.Time
}

// run connects to the database, reads flags and arguments, and does what the entry says.
func (c *call) run() error {
	if !c.offline {
		if err := c.connect(); err != nil {
			return err
		}
		defer c.close()
	}
	err := c.read()
	if err == nil {
		if c.do != nil {
			err = c.do(c)
		} else {
			err = c.ask()
		}
	}
	return c.failure(err)
}

func (c *call) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.conn.Close(ctx) // the server detects a lost connection by itself
}

// connectTimeout is for a DSN without a connect_timeout.
const connectTimeout = 10 * time.Second

// database is the DSN, without its placeholders.
func (t *tool) database() (string, error) {
	dsn := cmp.Or(t.dsn, os.Getenv(settings.EnvDSN))
	switch dsn {
	case "":
		return "", must("dsn", "", "a database: give --dsn, or set "+settings.EnvDSN)
	case settings.MemoryDSN:
		return "", must(
			"dsn",
			dsn,
			"a Postgres URL or key=value pairs: counters in memory are only in the proxy",
		)
	}
	dsn, _, err := t.expand(dsn)
	return dsn, err
}

// connect connects to the database. An error never contains the password.
func (c *call) connect() (err error) {
	if c.at, err = c.database(); err != nil {
		return err
	}
	// The driver of the proxies checks the DSN, so that both accept the same ones.
	db, err := c.driver()
	if err != nil {
		return err
	}
	db.Close()
	pool, err := pgxpool.ParseConfig(c.at) // a DSN may have settings of a pool
	if err != nil {
		return err
	}
	config := pool.ConnConfig
	config.ConnectTimeout = cmp.Or(config.ConnectTimeout, connectTimeout)
	config.RuntimeParams["application_name"] = cmp.Or(
		config.RuntimeParams["application_name"],
		"caddy pg-ratelimit",
	)
	config.RuntimeParams["client_encoding"] = "UTF8"
	config.RuntimeParams["timezone"] = "UTC" // of times in texts that the server makes
	// A pooler may give each transaction another session.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	if c.conn, err = pgx.ConnectConfig(c.ctx, config); err != nil {
		return fmt.Errorf("dsn: %w", err)
	}
	return c.tick()
}

// tick reads the clock of the server.
func (c *call) tick() error { return c.conn.QueryRow(c.ctx, "SELECT now()").Scan(&c.now) }

// driver is a connection as proxies have one, for their packages. It connects when it is first used.
func (c *call) driver() (*pgxdb.DB, error) { return pgxdb.Open(c.at, pgxdb.Options{MaxConns: 1}) }

const (
	// mostAttempts bounds how often a transaction runs.
	mostAttempts = 10
	// begin undoes settings of the role or the database that would cost statements their time.
	begin = "BEGIN; SET LOCAL jit = off; SET LOCAL lock_timeout = '10s'; SET LOCAL statement_timeout = 0; " +
		"SET LOCAL timezone = 'UTC'"
)

// shard matches the server's message about a table that Citus has moved to another server.
var shard = regexp.MustCompile(`relation "[^"]*rate_limit_[a-z]+_[0-9]+" does not exist`)

// errUndone ends a transaction that is to be undone.
var errUndone = errors.New("undone")

// together does something in one transaction, all or nothing, and again if the server ends the transaction to
// break a deadlock, or moves a shard.
func (c *call) together(do func() error) error {
	for attempt := 1; ; attempt++ {
		c.began = time.Now()
		tx, err := c.conn.BeginTx(c.ctx, pgx.TxOptions{BeginQuery: begin})
		if err != nil {
			return err
		}
		if err = do(); err == nil {
			err = tx.Commit(c.ctx) // checks rules, and may fail as well
		} else {
			_ = tx.Rollback(c.ctx) // the first error says more
		}
		var failed *pgconn.PgError
		isToRepeat := errors.As(err, &failed) &&
			(failed.Code == deadlockDetected || shard.MatchString(failed.Message))
		if !isToRepeat || attempt == mostAttempts || c.ctx.Err() != nil {
			if errors.Is(err, errUndone) {
				return nil
			}
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// rows are the rows of SQL, each a JSON object with the columns in their order.
func (c *call) rows(sql string) (rows []json.RawMessage, err error) {
	var text string
	sql = "WITH q AS (" + sql + ") SELECT coalesce(json_agg(q), '[]')::text FROM q"
	err = c.conn.QueryRow(c.ctx, sql, c.values).
		Scan(&text)
	if err == nil {
		err = json.Unmarshal([]byte(text), &rows)
	}
	return rows, err
}

// scalar returns the only value of SQL; nil for NULL, and without a row.
func (c *call) scalar(sql string, args ...any) (*string, error) {
	var value *string
	err := c.conn.QueryRow(c.ctx, "SELECT ("+sql+")::text", args...).Scan(&value)
	return value, err
}

// ask does what the SQL of an entry says, in one transaction, and prints it.
func (c *call) ask() error {
	sql, empty := c.sql, c.empty
	if c.choose != nil {
		var err error
		if sql, empty, err = c.choose(c); err != nil {
			return err
		}
	}
	if c.becomes != "" {
		return c.change(sql)
	}
	if c.one {
		// Each part is a column of the row.
		columns := "q.*"
		for _, p := range c.parts {
			columns += ", (SELECT coalesce(json_agg(p), '[]') FROM (" + p.sql + ") AS p) AS " + p.title
		}
		sql = "SELECT " + columns + " FROM (" + sql + ") AS q"
	}
	var rows []json.RawMessage
	more := map[string][]json.RawMessage{}
	err := c.together(func() (err error) {
		if c.before != "" {
			if _, err := c.conn.Exec(c.ctx, c.before, c.values); err != nil {
				return err
			}
		}
		if rows, err = c.rows(sql); err != nil {
			return err
		}
		if len(rows) == 0 && (c.one || c.lacks != "") {
			return c.notFound()
		}
		for i := 0; i < len(c.parts) && !c.one && !c.json && err == nil; i++ {
			more[c.parts[i].title], err = c.rows(c.parts[i].sql)
		}
		if c.after != "" {
			_, err = c.conn.Exec(c.ctx, c.after, c.values)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case c.one:
		return c.show(rows[0], "")
	}
	if err := c.show(rows, empty); err != nil || c.json {
		return err
	}
	return c.show(more, "")
}

// change changes what the first argument names, in one transaction, and prints what that then is.
func (c *call) change(sql string) error {
	if err := c.together(func() error {
		is, err := c.scalar(sql, c.values)
		if err == nil && (is == nil || *is == "false") {
			err = c.notFound()
		}
		return err
	}); err != nil {
		return err
	}
	return c.changed(c.becomes)
}

// changed prints what a command has done to what its first argument names.
func (c *call) changed(outcome string) error {
	if strings.HasSuffix(outcome, " to") {
		outcome += " " + text(c.args[1])
	}
	if !c.json {
		return c.say("The %s %s is %s.\n", c.kind, text(c.name()), outcome)
	}
	return c.show(struct {
		Name    string `json:"name"`
		Outcome string `json:"outcome"`
	}{c.name(), outcome}, "")
}

// known are the questions for what there is instead, by kind.
var known = map[string]string{
	"rule": `SELECT coalesce('must be one of ' || string_agg(name, ', ' ORDER BY name), 'there are no rules')
		FROM (SELECT name FROM rate_limit_rules ORDER BY name LIMIT 20) AS r`,
	"tier": `SELECT 'must be one of ' || string_agg(tier, ', ' ORDER BY rank, tier)
		FROM rate_limit_tiers`,
	"user": `SELECT 'not in the database: make it with: caddy pg-ratelimit users set USER tier=TIER'`,
	"key":  `SELECT 'no key has this id, see: caddy pg-ratelimit keys list'`,
}

const noCounter = `SELECT 'there is no counter of this prefix and key, so its full quota is left'`

// name is the first argument, as it was read.
func (c *call) name() string { return get[string](c, argumentNames(c.use)[0]) }

// notFound is the error about a name that the database does not have.
func (c *call) notFound() error {
	is, err := c.scalar(cmp.Or(c.lacks, known[c.kind]), c.values)
	switch {
	case err != nil:
		return err
	case c.kind == "counter of": // without the key, which may be a secret
		return errors.New(*is)
	case c.kind == "key":
		return fmt.Errorf("key: %s: %s", c.name(), *is)
	}
	return fmt.Errorf("%s: %q: %s", c.kind, c.name(), *is)
}

// apiKeys matches API keys in a text, also mistyped ones.
var apiKeys = regexp.MustCompile(`prl_[0-9A-Za-z]{5,}`)

// withoutKeys hides the API keys in the text of an error. An argument in a wrong place may be a key.
func withoutKeys(err error) error {
	if err == nil || !apiKeys.MatchString(err.Error()) {
		return err
	}
	return errors.New(hideKeys(err.Error()))
}

// hideKeys replaces the API keys in a text.
func hideKeys(text string) string { return apiKeys.ReplaceAllString(text, "prl_...") }
