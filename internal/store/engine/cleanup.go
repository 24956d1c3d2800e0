package engine

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/store/statement"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// cleanupRows is the LIMIT of Texts.Cleanup.
	cleanupRows = 1000
	// cleanupRounds bounds the statements of one cleanup.
	cleanupRounds = 100
	// cleanupTimeout bounds one statement.
	cleanupTimeout = 5 * time.Second
	// cleanupPause is the time after a cleanup in which none starts. At 650 batches a second, a tenth of them
	// would otherwise start a cleanup, which takes 3 % of the CPU of a limit.
	cleanupPause = 100 * time.Millisecond
	// A cleanup deletes rows that expired at least ownAge ago. This protects rows that are still in use: a
	// decision in flight may have read the clock earlier, or the clock may be set back. othersAge replaces
	// it for prefixes that this process does not count: a program of the npm library may count them, by a
	// clock that is late.
	ownAge    = time.Minute
	othersAge = 24 * time.Hour
)

// errLost ends a cleanup that lost a conflict with another transaction. A later cleanup deletes the rows.
var errLost = errors.New("the transaction was lost")

// cleaner is the state of the cleanups of an Engine, which delete expired rows in the background, one cleanup
// at a time. Each cleanup deletes the expired rows of the next prefix of the tables.
type cleaner struct {
	probability float64 // that a batch starts a cleanup
	random      func() float64

	counted sync.Map // the prefixes in batches that start a cleanup; values are true

	running int32 // 1 while a cleanup runs, and in the pause after it; atomic

	// The last cleanup was of prefix, in the table that durable selects. prefix is "" before the first prefix
	// of the table. Only the running cleanup uses these fields.
	durable bool
	prefix  string
}

// startCleanup starts a cleanup, unless one is running or has just run. now is that of statement.Clock.
func (e *Engine) startCleanup(now int64) {
	c := &e.cleaner
	if e.closing.Err() != nil || !atomic.CompareAndSwapInt32(&c.running, 0, 1) {
		return
	}
	go func() {
		err := batch.Try(func() error { return e.cleanUp(now) })
		if e.closing.Err() == nil && !errors.Is(err, errLost) {
			e.report(err)
		}
		health.Sleep(e.closing, cleanupPause)
		atomic.StoreInt32(&c.running, 0)
	}()
}

// cleanUp deletes the expired rows of the next prefix, until a statement deletes fewer than cleanupRows, or
// cleanupRounds statements have run.
func (e *Engine) cleanUp(now int64) error {
	c := &e.cleaner
	next := &pgdb.Statement{SQL: e.texts.NextPrefix(c.durable), Args: []any{c.prefix}, Unnamed: true}
	if err := e.runCleanup(next); err != nil {
		return err
	}
	if next.Rows == 0 || len(next.Result) < 4 {
		c.prefix = ""
		c.durable = !c.durable
		return nil
	}
	c.prefix = string(next.Result[4:])
	age := othersAge
	if _, counted := c.counted.Load(c.prefix); counted {
		age = ownAge
	}
	for round := 0; round < cleanupRounds; round++ {
		holds := e.slots.Name.Taken() || e.ledger.Name.Taken()
		statement := &pgdb.Statement{SQL: e.texts.Cleanup(c.durable, holds),
			Args: []any{statement.Clock(now, 0), c.prefix, age.Microseconds()}, Unnamed: true}
		if err := e.runCleanup(statement); err != nil {
			return err
		}
		if deleted := pg.Bigints(statement.Result); len(deleted) != 1 || deleted[0] < cleanupRows {
			break
		}
	}
	return nil
}

// runCleanup runs one statement.
func (e *Engine) runCleanup(statement *pgdb.Statement) error {
	statements := []*pgdb.Statement{{SQL: e.texts.Index, Joined: true}, statement}
	err := e.db.Run(e.closing, cleanupTimeout, statements)
	if e.closing.Err() == nil {
		countErrors(e.stats, statements, err)
	}
	if err == nil && len(lostTransactions(statements)) > 0 {
		return errLost
	}
	if err == nil {
		err = statement.Err
	}
	if err != nil {
		return fmt.Errorf("deleting expired rows: %w", err)
	}
	return nil
}
