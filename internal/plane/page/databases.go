package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// mostAsking is how many requests ask at the same time, and mostConnections how many connections a database has.
	// The collector has a question of each kind, and a request one connection to each database.
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

type (
	pool       = puddle.Pool[*admin.Database]
	connection = puddle.Resource[*admin.Database]
)

// pools have the connections to the databases.
type pools struct {
	dsns  dsns
	byDSN map[string]*pool
}

func newPools(d dsns) (*pools, error) {
	p := &pools{d, map[string]*pool{}}
	for _, dsn := range d {
		made, err := puddle.NewPool(&puddle.Config[*admin.Database]{
			Constructor: func(ctx context.Context) (*admin.Database, error) { return openDatabase(ctx, dsn, d) },
			Destructor:  (*admin.Database).Close, MaxSize: mostConnections,
		})
		if err != nil {
			return nil, err
		}
		p.byDSN[dsn] = made
	}
	return p, nil
}

// close closes the connections that nobody uses. The others are closed after their use.
func (p *pools) close() {
	for _, one := range p.byDSN {
		go one.Close() // it waits for those in use
	}
}

// connections are for one question: one to each database that it asks.
type connections struct {
	pools *pools
	taken map[string]*connection // by DSN
}

// ask runs something on connections that nobody else uses meanwhile.
func (p *pools) ask(ctx context.Context, do func(ctx context.Context, c *connections) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c := &connections{p, map[string]*connection{}}
	err := do(ctx, c)
	broken := ctx.Err() != nil
	for dsn, one := range c.taken {
		if ctx.Err() != nil || one.Value().Conn().IsClosed() {
			broken = true
			one.Destroy()
			continue
		}
		one.Release()
		time.AfterFunc(idleTime, func() { closeIdle(p.byDSN[dsn]) })
	}
	var down *downError
	if broken && err != nil && !errors.As(err, &down) {
		return &downError{err}
	}
	return err
}

// at is the connection to the database of a dataset. It connects if there is none.
func (c *connections) at(ctx context.Context, of dataset) (*admin.Database, error) {
	dsn := c.pools.dsns[of]
	if one := c.taken[dsn]; one != nil {
		return one.Value(), nil
	}
	for {
		one, err := c.pools.byDSN[dsn].Acquire(ctx)
		if err != nil {
			var down *downError
			if !errors.As(err, &down) {
				err = &downError{err}
			}
			return nil, err
		}
		if one.IdleDuration() > time.Second && one.Value().Conn().Ping(ctx) != nil {
			one.Destroy()
			continue
		}
		c.taken[dsn] = one
		return one.Value(), nil
	}
}

// closeIdle closes the connections that nobody has used for a while.
func closeIdle(p *pool) {
	for _, one := range p.AcquireAllIdle() {
		if one.IdleDuration() >= idleTime {
			one.Destroy()
		} else {
			one.ReleaseUnused()
		}
	}
}

// openDatabase connects for the page.
func openDatabase(ctx context.Context, dsn string, d dsns) (*admin.Database, error) {
	db, err := admin.Open(ctx, dsn)
	if err != nil {
		return nil, &downError{err}
	}
	if _, err := db.Conn().Exec(ctx, fmt.Sprintf("SET statement_timeout = %d", askTimeout.Milliseconds()), pgx.QueryExecModeSimpleProtocol); err != nil {
		db.Close()
		return nil, &downError{err}
	}
	db.Elsewhere(d[ofPolicy], d[ofCounters])
	return db, nil
}

// downError is that the database does not answer.
type downError struct{ cause error }

func (e *downError) Error() string { return "the database does not answer: " + e.cause.Error() }
func (e *downError) Unwrap() error { return e.cause }
