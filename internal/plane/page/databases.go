package page

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

const (
	// mostAsking is how many questions are asked at the same time.
	mostAsking = 4
	// askTimeout is for one question.
	askTimeout = 20 * time.Second
	// idleTime is for how long a connection stays open that nobody uses.
	idleTime = time.Minute
)

// databases are the connections for questions.
type databases struct {
	dsn   string
	slots chan struct{} // one for each question

	mu   sync.Mutex
	free []*admin.Database
	last time.Time // when one was used
}

func newDatabases(dsn string) *databases {
	return &databases{dsn: dsn, slots: make(chan struct{}, mostAsking)}
}

// ask runs something on a connection that nobody else uses meanwhile.
func (p *databases) ask(ctx context.Context, do func(ctx context.Context, db *admin.Database) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return &downError{fmt.Errorf("too many questions at the same time: %w", ctx.Err())}
	}
	db, err := p.take(ctx)
	if err != nil {
		return err
	}
	err = do(ctx, db)
	if db.Conn().IsClosed() || ctx.Err() != nil {
		db.Close()
		if err != nil {
			return &downError{err}
		}
		return nil
	}
	p.mu.Lock()
	p.free = append(p.free, db)
	p.last = time.Now()
	p.mu.Unlock()
	time.AfterFunc(idleTime, p.closeIdle)
	return err
}

// take returns a connection that is free and works, or a new one.
func (p *databases) take(ctx context.Context) (*admin.Database, error) {
	p.mu.Lock()
	var db *admin.Database
	if n := len(p.free); n > 0 {
		db = p.free[n-1]
		p.free = p.free[:n-1]
	}
	p.mu.Unlock()
	if db != nil {
		if db.Conn().Ping(ctx) == nil {
			return db, nil
		}
		db.Close()
	}
	return openDatabase(ctx, p.dsn)
}

// closeIdle closes all connections unless one was used meanwhile.
func (p *databases) closeIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.last) >= idleTime {
		p.closeAll()
	}
}

func (p *databases) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeAll()
}

func (p *databases) closeAll() {
	for _, db := range p.free {
		db.Close()
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
