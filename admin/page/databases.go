package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

const (
	// maxSenderQueries bounds the concurrent queries about senders, and maxConnections the connections to one
	// database.
	maxSenderQueries, maxConnections = 3, 8
	// idleTime bounds the time for which an unused connection stays open.
	idleTime = time.Minute
)

// dataset identifies data that may have a database of its own.
type dataset int

// The values of dataset.
const (
	counterData dataset = iota
	policyData
	historyData
	datasets
)

// dsns holds the DSN of each dataset.
type dsns [datasets]string

func (o *Options) dsns() dsns { return dsns{o.DSN, cmp.Or(o.Policy, o.DSN), cmp.Or(o.History, o.DSN)} }

// pools holds the connections to the databases: one pool for each DSN, because several datasets may have the
// same DSN.
type pools struct {
	dsns  dsns
	byDSN map[string]*pgxpool.Pool
}

// newPools returns pools that connect on first use, and a text with the names of their databases to display.
func newPools(o *Options) (p *pools, names string, err error) {
	p = &pools{o.dsns(), map[string]*pgxpool.Pool{}}
	for data, dsn := range p.dsns {
		if p.byDSN[dsn] != nil {
			continue
		}
		config, err := pgxdb.SessionConfig(dsn, pg.Program+" page")
		if err != nil {
			return nil, "", err
		}
		server := config.ConnConfig
		names += fmt.Sprintf("%s%s at %s:%d", []string{"", ", policy in ", ", history in "}[data],
			server.Database, server.Host, server.Port)
		config.MaxConns, config.MaxConnIdleTime = maxConnections, idleTime
		config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			if o.Renew == nil {
				return nil
			}
			options, err := o.Renew()
			if err != nil {
				return err
			}
			renewed, err := pgxdb.SessionConfig(options.dsns()[data], pg.Program+" page")
			if err == nil {
				*c = *renewed.ConnConfig
			}
			return err
		}
		if p.byDSN[dsn], err = pgxpool.NewWithConfig(context.Background(), config); err != nil {
			return nil, "", err
		}
	}
	return p, names, nil
}

// close closes the idle connections now, and each connection in use after its use.
func (p *pools) close() {
	for _, pool := range p.byDSN {
		go pool.Close() // waits for connections in use
	}
}

// read calls query in a read-only transaction. If the database cannot be reached, or does not answer within
// timeout, the error is a *downError.
func (p *pools) read(ctx context.Context, data dataset, timeout time.Duration,
	query func(ctx context.Context, tx pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := pgx.BeginTxFunc(ctx, p.byDSN[p.dsns[data]], pgx.TxOptions{AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT set_config('statement_timeout', $1, true), "+
				"set_config('TimeZone', 'UTC', true), set_config('jit', 'off', true), "+
				"set_config('row_security', 'off', true)",
				strconv.FormatInt(timeout.Milliseconds(), 10))
			if err != nil {
				return err
			}
			return query(ctx, tx)
		})
	if _, ok := pgError(err); err == nil || ok {
		return err
	}
	if failed, ok := errorAs[*pgconn.PgError](err); ok {
		if err = pg.LoginError(err, failed.Code, failed.Message); errors.Is(err, pgdb.ErrConfiguration) {
			return err
		}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("nothing came within %v", timeout)
	}
	if data == counterData {
		err = fmt.Errorf("if it does not answer the proxies either, the on_error setting of each decides: %w",
			err)
	}
	return &downError{err}
}

// rows returns a JSON object with the rows of a question ("rows") and the time of the database ("time"). If a
// table of the question is missing, "rows" is empty and "absent" is true.
func (p *pools) rows(ctx context.Context, q *question, timeout time.Duration, args ...any) (
	body []byte, err error) {
	err = p.read(ctx, q.data, timeout, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, "SELECT json_build_object('time', clock_timestamp(), 'rows', "+
			"coalesce(json_agg(q), '[]'))::text FROM ("+
			q.sql+") q", args...).Scan(&body)
	})
	if isMissing(err) {
		now := time.Now().UTC().Format(time.RFC3339Nano)
		return fmt.Appendf(nil, `{"time": %q, "rows": [], "absent": true}`, now), nil
	}
	return body, err
}

// pgError returns the database's error in the tree of err. It skips an error that ends the session (FATAL),
// because such an error means that the database does not answer.
func pgError(err error) (*pgconn.PgError, bool) {
	pgErr, ok := errorAs[*pgconn.PgError](err)
	return pgErr, ok && pgErr.Severity != "FATAL"
}

// downError reports that the database does not answer.
type downError struct{ cause error }

func (e *downError) Error() string { return "the database does not answer: " + e.cause.Error() }
func (e *downError) Unwrap() error { return e.cause }
