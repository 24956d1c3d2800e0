package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Prepare starts, in the background, what the first decision would otherwise
// wait for: a connection, and the migration where it is due.
func (p *Postgres) Prepare() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.startMigration()
}

// prepare waits until the tables are right.
func (p *Postgres) prepare(ctx context.Context) error {
	p.mu.Lock()
	if p.migrated {
		p.mu.Unlock()
		return nil
	}
	p.startMigration()
	migration := p.migration
	p.mu.Unlock()
	// No select: in Yaegi, those who are in one at once share its cases.
	either, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(migration, cancel)
	<-either.Done()
	stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := ctx.Err(); err != nil {
		p.health.note(err, time.Now())
		return err
	}
	return p.failure
}

// startMigration starts one unless one is under way or none is due. The caller
// holds the mutex.
func (p *Postgres) startMigration() {
	if p.migrated || p.migration != nil || p.closed {
		return
	}
	migration, done := context.WithCancel(context.Background())
	p.migration = migration
	p.failure = nil
	go func() {
		err := p.migrateSafely()
		p.mu.Lock()
		p.migration = nil
		p.migrated = err == nil
		p.failure = err
		p.health.note(err, time.Now())
		p.mu.Unlock()
		if err != nil {
			p.report(err)
		}
		done()
	}()
}

// migrationTimeout bounds one attempt; others may hold the lock for as long.
const migrationTimeout = 30 * time.Second

func (p *Postgres) migrateSafely() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = panicError(r)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), migrationTimeout)
	defer cancel()
	if right, err := p.schemaRight(ctx); right || err != nil {
		return err
	}
	failure := p.db.Exec(ctx, migrationSQL)
	if failure == nil {
		return nil
	}
	// Whoever made the tables at the same moment without our lock (the npm
	// library does) can make this attempt fail, and the tables right.
	if right, err := p.schemaRight(ctx); right && err == nil {
		return nil
	}
	return fmt.Errorf("creating the tables rate_limit_ephemeral and rate_limit_durable (their owner can run ratelimit.TableSQL instead): %w", failure)
}

// schemaRight reports whether the tables need nothing.
func (p *Postgres) schemaRight(ctx context.Context) (bool, error) {
	right := false
	s := schemaStatement(&right)
	if err := p.db.Run(ctx, []*Statement{s}); err != nil {
		return false, err
	}
	if s.Err != nil {
		return false, fmt.Errorf("looking for the tables: %w", s.Err)
	}
	return right, nil
}

var errNoAnswer = errors.New("ratelimit: the server gave no answer for a key")
