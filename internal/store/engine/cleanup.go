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
	// cleanupRows is the most that cleanupSQL deletes.
	cleanupRows = 1000
	// cleanupRounds bounds what one cleanup deletes, in statements of cleanupRows rows.
	cleanupRounds = 100
	// cleanupTimeout is for one statement.
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
	slots       func() bool // whether the process has limits InFlight

	mu      sync.Mutex
	running bool // guarded by mu

	// How far the cleaner has gone through all prefixes, used or not.
	// Only the cleanup that runs uses these.
	durable bool      // the table
	prefix  string    // the last prefix; "" is none
	next    time.Time // when the next prefix is due
}

// after cleans up after the statements of a plan. The callers draw a random number, and call it with
// the probability of the cleaner.
func (c *cleaner) after(p *plan) {
	var due []*pgdb.Statement
	for _, stage := range p.stages {
		for _, g := range stage {
			if g.kind == take {
				due = append(due, c.cleanup(g)...)
			}
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
		if failure := batch.PanicError(func() { err = c.cleanUp(due) }); failure != nil {
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

// cleanup returns the statements that delete expired rows of a group's prefixes, as of the
// time that the group was decided.
func (c *cleaner) cleanup(g *group) []*pgdb.Statement {
	var all []*pgdb.Statement
	seen := map[string]bool{}
	for _, e := range g.entries {
		if !seen[e.id.Prefix] && e.view.Now != 0 {
			seen[e.id.Prefix] = true
			all = append(all, &pgdb.Statement{SQL: c.texts.cleanup[cleanupKey{g.durable, c.slots()}],
				Args: []any{[]int64{e.view.Now, 0}, e.id.Prefix}, Unnamed: true})
		}
	}
	return all
}

// cleanUp deletes the expired rows that are due, and those of the next prefix of the sweep.
func (c *cleaner) cleanUp(due []*pgdb.Statement) error {
	if err := c.deleteExpired(due); err != nil {
		return err
	}
	if now := time.Now(); !now.Before(c.next) {
		c.next = now.Add(sweepInterval)
		return c.sweep(due[0].Args[0])
	}
	return nil
}

// sweep cleans the next prefix of the tables, as of now.
func (c *cleaner) sweep(now any) error {
	statement := &pgdb.Statement{SQL: strings.Replace(nextPrefixSQL, "{table}",
		c.texts.tables[tableName(c.durable)].Name, 1), Args: []any{c.prefix}, Unnamed: true}
	if err := c.run(statement); err != nil {
		return err
	}
	if statement.Rows == 0 || len(statement.Result) < 4 {
		c.prefix = ""
		c.durable = !c.durable
		return nil
	}
	c.prefix = string(statement.Result[4:])
	return c.deleteExpired([]*pgdb.Statement{{SQL: c.texts.cleanup[cleanupKey{c.durable, c.slots()}],
		Args: []any{now, c.prefix}, Unnamed: true}})
}

// run runs one statement.
func (c *cleaner) run(statement *pgdb.Statement) error {
	ctx, cancel := context.WithTimeout(c.server.closing, cleanupTimeout)
	defer cancel()
	statements := []*pgdb.Statement{{SQL: c.texts.index, Joined: true}, statement}
	err := c.server.db.Run(ctx, statements)
	if c.server.closing.Err() == nil {
		c.server.counts.countErrors(statements, err)
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

// deleteExpired runs cleanup statements until they find fewer rows than they could delete.
func (c *cleaner) deleteExpired(due []*pgdb.Statement) error {
	for round := 0; round < cleanupRounds && len(due) > 0; round++ {
		var more []*pgdb.Statement
		for _, statement := range due {
			if err := c.run(statement); err != nil {
				return err
			}
			if deleted := pg.Bigints(statement.Result); len(deleted) == 1 && deleted[0] >= cleanupRows {
				more = append(more, statement)
			}
		}
		due = more
	}
	return nil
}
