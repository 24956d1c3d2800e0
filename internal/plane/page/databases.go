package page

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// mostAsking is how many requests ask at the same time, and mostConnections how many connections a database has.
	// The collector has a question of each kind, and a request one connection at a time.
	mostAsking, mostConnections = 4, 8
	// askTimeout is for one question.
	askTimeout = 20 * time.Second
	// idleTime is for how long a connection stays open that nobody uses.
	idleTime = time.Minute
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

// current are the DSNs for new connections.
func (o *Options) current() (dsns, error) {
	if o.Renew == nil {
		return o.dsns(), nil
	}
	now, err := o.Renew()
	return now.dsns(), err
}

// text names the databases for people.
func (d *dsns) text() (string, error) {
	var names [datasets]string
	for of, dsn := range d {
		config, err := pgconn.ParseConfig(dsn)
		if err != nil {
			return "", &ratelimit.FieldError{Field: "dsn", Value: "…", Want: "a Postgres URL or key=value pairs"} // what is wrong may hold a password
		}
		names[of] = fmt.Sprintf("%s at %s:%d", config.Database, config.Host, config.Port)
	}
	text := names[ofCounters]
	if d[ofPolicy] != d[ofCounters] {
		text += ", policy in " + names[ofPolicy]
	}
	if d[ofHistory] != d[ofCounters] {
		text += ", history in " + names[ofHistory]
	}
	return text, nil
}

// pools have the connections to the databases.
type pools struct {
	dsns  dsns
	byDSN map[string]*pgxpool.Pool
}

// theDatabase is what a connection of a pool has with it.
const theDatabase = "admin.Database"

func databaseOf(conn *pgx.Conn) *admin.Database {
	return conn.PgConn().CustomData()[theDatabase].(*admin.Database)
}

// newPools makes pools without a connection.
func newPools(o *Options) (*pools, error) {
	p := &pools{o.dsns(), map[string]*pgxpool.Pool{}}
	for of, dsn := range p.dsns {
		if p.byDSN[dsn] != nil {
			continue
		}
		config, err := admin.Config(dsn)
		if err != nil {
			return nil, err
		}
		config.MaxConns, config.MaxConnIdleTime = mostConnections, idleTime
		config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			now, err := o.current()
			if err != nil {
				return err
			}
			renewed, err := admin.Config(now[of])
			if err == nil {
				*c = *renewed.ConnConfig
			}
			return err
		}
		config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
			now, err := o.current()
			if err != nil {
				return err
			}
			db := admin.On(conn, now[of])
			db.Elsewhere(now[ofPolicy], now[ofCounters])
			conn.PgConn().CustomData()[theDatabase] = db
			db.Bound(askTimeout)
			return nil
		}
		config.BeforeClose = func(conn *pgx.Conn) { databaseOf(conn).Close() } // and what it has opened itself
		if p.byDSN[dsn], err = pgxpool.NewWithConfig(context.Background(), config); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// close closes the connections that nobody uses. The others are closed after their use.
func (p *pools) close() {
	for _, one := range p.byDSN {
		go one.Close() // it waits for those in use
	}
}

// ask runs something on a connection to the database of a dataset, which nobody else uses meanwhile. What it runs asks for
// no other connection.
func (p *pools) ask(ctx context.Context, of dataset, do func(ctx context.Context, db *admin.Database) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := p.byDSN[p.dsns[of]].Acquire(ctx)
	if err != nil {
		return &downError{err}
	}
	defer conn.Release()
	if err = do(ctx, databaseOf(conn.Conn())); err != nil && (ctx.Err() != nil || conn.Conn().IsClosed()) {
		return &downError{err}
	}
	return err
}

// downError is that the database does not answer.
type downError struct{ cause error }

func (e *downError) Error() string { return "the database does not answer: " + e.cause.Error() }
func (e *downError) Unwrap() error { return e.cause }
