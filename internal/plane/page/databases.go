package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// mostAsking is how many questions are asked at the same time.
	mostAsking = 4
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

// questionPool has the connections for questions.
type questionPool struct {
	dsns  dsns
	slots chan struct{} // one for each question

	mu   sync.Mutex
	free []*connections
	last time.Time // when one was used
}

func newQuestionPool(d dsns) *questionPool {
	return &questionPool{dsns: d, slots: make(chan struct{}, mostAsking)}
}

// connections are for one question: one to each database.
type connections struct {
	dsns dsns
	open map[string]*admin.Database // by DSN
}

// at is the connection to the database of a dataset. It connects if there is none.
func (c *connections) at(ctx context.Context, of dataset) (*admin.Database, error) {
	dsn := c.dsns[of]
	if db := c.open[dsn]; db != nil {
		return db, nil
	}
	db, err := openDatabase(ctx, dsn)
	if err != nil {
		return nil, err
	}
	db.Elsewhere(c.dsns[ofPolicy], c.dsns[ofCounters])
	c.open[dsn] = db
	return db, nil
}

// broken reports whether a connection is closed.
func (c *connections) broken() bool {
	for _, db := range c.open {
		if db.Conn().IsClosed() {
			return true
		}
	}
	return false
}

func (c *connections) close() {
	for _, db := range c.open {
		db.Close()
	}
	c.open = map[string]*admin.Database{}
}

// ask runs something on connections that nobody else uses meanwhile.
func (p *questionPool) ask(ctx context.Context, do func(ctx context.Context, c *connections) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return &downError{fmt.Errorf("too many questions at the same time: %w", ctx.Err())}
	}
	c := p.take(ctx)
	err := do(ctx, c)
	if c.broken() || ctx.Err() != nil {
		c.close()
		var down *downError
		if err != nil && !errors.As(err, &down) {
			return &downError{err}
		}
		return err
	}
	p.mu.Lock()
	p.free = append(p.free, c)
	p.last = time.Now()
	p.mu.Unlock()
	time.AfterFunc(idleTime, p.closeIdle)
	return err
}

// take returns connections that are free and work, or none yet.
func (p *questionPool) take(ctx context.Context) *connections {
	p.mu.Lock()
	c := &connections{dsns: p.dsns, open: map[string]*admin.Database{}}
	if n := len(p.free); n > 0 {
		c = p.free[n-1]
		p.free = p.free[:n-1]
	}
	p.mu.Unlock()
	for _, db := range c.open {
		if db.Conn().Ping(ctx) != nil {
			c.close()
			break
		}
	}
	return c
}

// closeIdle closes all connections unless one was used meanwhile.
func (p *questionPool) closeIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.last) >= idleTime {
		p.closeAll()
	}
}

func (p *questionPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeAll()
}

func (p *questionPool) closeAll() {
	for _, c := range p.free {
		c.close()
	}
	p.free = nil
}

// openDatabase connects for the page.
func openDatabase(ctx context.Context, dsn string) (*admin.Database, error) {
	db, err := admin.Open(ctx, dsn)
	if err != nil {
		return nil, &downError{err}
	}
	if _, err := db.Conn().Exec(ctx, fmt.Sprintf("SET statement_timeout = %d", askTimeout.Milliseconds()), pgx.QueryExecModeSimpleProtocol); err != nil {
		db.Close()
		return nil, &downError{err}
	}
	return db, nil
}

// downError is that the database does not answer.
type downError struct{ cause error }

func (e *downError) Error() string { return "the database does not answer: " + e.cause.Error() }
func (e *downError) Unwrap() error { return e.cause }
