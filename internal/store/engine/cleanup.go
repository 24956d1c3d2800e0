package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// cleanupRows is the LIMIT of cleanupSQL.
	cleanupRows = 1000
	// cleanupRounds bounds what one cleanup deletes, in statements of cleanupRows rows.
	cleanupRounds = 100
	// cleanupTimeout bounds one statement.
	cleanupTimeout = 5 * time.Second
	// sweepInterval is the least time between two prefixes of the sweep.
	sweepInterval = time.Second
)

// errLost ends a cleanup that has lost against another transaction. A later cleanup deletes the rows.
var errLost = errors.New("the transaction was lost")

// cleaner deletes expired rows now and then, in the background, one cleanup at a time: those
// of the prefixes of a plan, and those of one more prefix of the tables.
type cleaner struct {
	server      *server
	texts       *statements
	probability float64
	random      func() float64
	report      func(error)
	slots       func() bool // reports whether the process has used limits InFlight

	mu      sync.Mutex
	running bool // guarded by mu

	// The sweep through all prefixes. Only the cleanup that runs uses these fields.
	swept     tablePrefix // the last prefix; without a name, the sweep continues with the first of the table
	nextSweep time.Time   // when the next prefix is due
}

// tablePrefix names the rows of a prefix in one of the tables.
type tablePrefix struct {
	durable bool
	name    string
}

// start starts a cleanup of the prefixes of a plan, as of the time of its decisions, unless a cleanup runs.
// Callers call it with cleaner.probability.
func (c *cleaner) start(p *plan) {
	var due []tablePrefix
	seen := map[tablePrefix]bool{}
	now := int64(0)
	for _, e := range p.entries {
		of := tablePrefix{e.id.Durable, e.id.Prefix}
		if e.kind == take && e.view.Now != 0 && !seen[of] {
			now = e.view.Now
			seen[of] = true
			due = append(due, of)
		}
	}
	if len(due) == 0 || c.server.closing.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running {
		return
	}
	c.running = true
	go func() {
		var err error
		if failure := batch.PanicError(func() { err = c.cleanUp(now, due) }); failure != nil {
			err = failure
		}
		c.mu.Lock()
		c.running = false
		c.mu.Unlock()
		if c.server.closing.Err() == nil && !errors.Is(err, errLost) {
			c.report(err)
		}
	}()
}

// cleanUp deletes the expired rows of prefixes, and those of the next prefix of the sweep if that is due. now
// is the server's time.
func (c *cleaner) cleanUp(now int64, due []tablePrefix) error {
	for _, of := range due {
		if err := c.deleteExpired(now, of); err != nil {
			return err
		}
	}
	if time.Now().Before(c.nextSweep) {
		return nil
	}
	c.nextSweep = time.Now().Add(sweepInterval)
	statement := &pgdb.Statement{SQL: strings.Replace(nextPrefixSQL, "{table}",
		c.texts.tables[tableName(c.swept.durable)].Name, 1), Args: []any{c.swept.name}, Unnamed: true}
	if err := c.run(statement); err != nil {
		return err
	}
	if statement.Rows == 0 || len(statement.Result) < 4 {
		c.swept.name = ""
		c.swept.durable = !c.swept.durable
		return nil
	}
	c.swept.name = string(statement.Result[4:])
	return c.deleteExpired(now, c.swept)
}

// deleteExpired deletes the expired rows of a prefix, until a statement finds fewer than it could delete.
func (c *cleaner) deleteExpired(now int64, of tablePrefix) error {
	for round := 0; round < cleanupRounds; round++ {
		statement := &pgdb.Statement{SQL: c.texts.cleanup(of.durable, c.slots()),
			Args: []any{[]int64{now, 0}, of.name}, Unnamed: true}
		if err := c.run(statement); err != nil {
			return err
		}
		if deleted := pg.Bigints(statement.Result); len(deleted) != 1 || deleted[0] < cleanupRows {
			break
		}
	}
	return nil
}

// run runs one statement.
func (c *cleaner) run(statement *pgdb.Statement) error {
	ctx, cancel := context.WithTimeout(c.server.closing, cleanupTimeout)
	defer cancel()
	statements := []*pgdb.Statement{{SQL: c.texts.index, Joined: true}, statement}
	err := c.server.db.Run(ctx, statements)
	if c.server.closing.Err() == nil {
		countErrors(c.server.stats, statements, err)
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
