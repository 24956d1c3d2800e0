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

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// mostAsking is the number of questions about senders that are asked at once, and mostConnections the
	// number of connections to a database.
	mostAsking, mostConnections = 3, 8
	// idleTime is the time for which an unused connection stays open.
	idleTime = time.Minute
	// connectTimeout bounds a login, if the DSN does not.
	connectTimeout = 10 * time.Second
)

// dataset is something that may be in a database of its own.
type dataset int

// The values of dataset.
const (
	ofCounters dataset = iota
	ofPolicy
	ofHistory
	datasets
)

// dsns are the DSNs of the datasets.
type dsns [datasets]string

func (o *Options) dsns() dsns { return dsns{o.DSN, cmp.Or(o.Policy, o.DSN), cmp.Or(o.History, o.DSN)} }

// pools have the connections to the databases.
type pools struct {
	dsns  dsns
	byDSN map[string]*pgxpool.Pool
}

// newPools makes pools without a connection, and names their databases.
func newPools(o *Options) (p *pools, names string, err error) {
	p = &pools{o.dsns(), map[string]*pgxpool.Pool{}}
	for of, dsn := range p.dsns {
		if p.byDSN[dsn] != nil {
			continue
		}
		config, err := configOf(dsn)
		if err != nil {
			return nil, "", err
		}
		at := config.ConnConfig
		names += fmt.Sprintf("%s%s at %s:%d", []string{"", ", policy in ", ", history in "}[of], at.Database,
			at.Host, at.Port)
		config.MaxConns, config.MaxConnIdleTime = mostConnections, idleTime
		config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			if o.Renew == nil {
				return nil
			}
			now, err := o.Renew()
			if err != nil {
				return err
			}
			renewed, err := configOf(now.dsns()[of])
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

// configOf reads a DSN. An error does not repeat it: what is wrong may be a password.
func configOf(dsn string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, &ratelimit.FieldError{Field: "dsn", Value: "…", Want: "a Postgres URL or key=value pairs"}
	}
	c := config.ConnConfig
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "caddy pg-ratelimit page"
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	c.RuntimeParams["client_encoding"] = "UTF8"
	c.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler may give each transaction another session
	return config, nil
}

// close closes the unused connections. The others are closed after their use.
func (p *pools) close() {
	for _, one := range p.byDSN {
		go one.Close() // it waits for those in use
	}
}

// read runs something in a transaction that can change nothing.
func (p *pools) read(ctx context.Context, of dataset, timeout time.Duration,
	do func(ctx context.Context, tx pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := pgx.BeginTxFunc(ctx, p.byDSN[p.dsns[of]], pgx.TxOptions{AccessMode: pgx.ReadOnly},
		func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT set_config('statement_timeout', $1, true), "+
				"set_config('TimeZone', 'UTC', true), set_config('jit', 'off', true)",
				strconv.FormatInt(timeout.Milliseconds(), 10))
			if err != nil {
				return err
			}
			return do(ctx, tx)
		})
	if _, answered := pgError(err); err == nil || answered {
		return err
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("nothing came within %v", timeout)
	}
	return &downError{err}
}

// rows returns the rows of a question as JSON, with the time of the database.
func (p *pools) rows(ctx context.Context, q *question, args ...any) (text []byte, err error) {
	err = p.read(ctx, q.of, q.timeout, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, "SELECT json_build_object('time', clock_timestamp(), 'rows', "+
			"coalesce(json_agg(q), '[]'))::text FROM ("+
			q.sql+") q", args...).Scan(&text)
	})
	if absent(err) {
		now := time.Now().UTC().Format(time.RFC3339Nano)
		return fmt.Appendf(nil, `{"time": %q, "rows": [], "absent": true}`, now), nil
	}
	return text, err
}

// pgError returns the error that the database has answered with. An error that ends the session is not an
// answer.
func pgError(err error) (*pgconn.PgError, bool) {
	of, is := errorAs[*pgconn.PgError](err)
	return of, is && of.Severity != "FATAL"
}

// downError reports that the database does not answer.
type downError struct{ cause error }

func (e *downError) Error() string { return "the database does not answer: " + e.cause.Error() }
func (e *downError) Unwrap() error { return e.cause }
