package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// TableSQL creates the tables of counts, like postgres.TableSQL.
const TableSQL = schema.Counters

// migrationSQL runs in one process at a time.
const migrationSQL = schema.Lock + TableSQL

// tables migrates the two tables of counts once, and again after they were dropped.
type tables struct {
	server   *server
	disabled bool // the operator creates the tables
	setup    *Setup
	existed  bool // the tables existed in an earlier attempt; only the setup writes it
}

// restoreWait is the time for which tables must be missing before migrate creates them again.
const restoreWait = time.Second

// newTables returns tables that need a migration, unless migration is disabled.
func newTables(s *server, disabled bool, report func(error)) *tables {
	t := &tables{server: s, disabled: disabled}
	t.setup = NewSetup(s.closing, s.health, report, func(ctx context.Context) error { return t.migrate(ctx) })
	if disabled {
		t.setup.ready = 1
	}
	return t
}

// missing records that the tables are missing.
func (t *tables) missing() {
	if !t.disabled {
		atomic.StoreInt32(&t.setup.ready, 0)
	}
}

// migrate creates or upgrades the tables of counts.
func (t *tables) migrate(ctx context.Context) error {
	ready, restoring, err := t.inspect(ctx)
	if err == nil && !ready && !restoring && t.existed {
		// A restore drops the tables, and creates them a moment later. In between, nothing in the database
		// shows the restore, so two inspections must find neither tables nor a restore.
		health.Sleep(ctx, restoreWait)
		ready, restoring, err = t.inspect(ctx)
	}
	if err == nil && restoring && !ready {
		err = schema.ErrRestoring
	}
	if err == nil && !ready {
		err = t.create(ctx)
	}
	t.existed = t.existed || err == nil
	return err
}

// create creates or upgrades the tables.
func (t *tables) create(ctx context.Context) error {
	failure := t.server.db.Exec(ctx, migrationSQL)
	if failure == nil {
		return nil
	}
	// A program that creates the tables at the same time without the advisory lock, such as the npm library,
	// can make this attempt fail although the tables are right.
	if ready, _, err := t.inspect(ctx); err == nil && ready {
		return nil
	}
	return fmt.Errorf("creating the tables rate_limit_ephemeral and rate_limit_durable (a role that may, "+
		"such as their owner, can run caddy pg-ratelimit migrate, or schema.sql, instead): %w",
		pg.Explain(ctx, t.server.db, failure))
}

// inspect reports whether the tables are ready, and whether a restore of the policy is under way or has
// failed. It also reads the server's identity, to detect a replaced server later. A connection failure counts
// for the health of the database.
func (t *tables) inspect(ctx context.Context) (ready, restoring bool, err error) {
	sent := time.Now()
	begin := t.server.health.Begin()
	found := &pgdb.Statement{SQL: schema.Ready}
	server := &pgdb.Statement{SQL: serverSQL}
	if failure := t.server.db.Run(ctx, []*pgdb.Statement{found, server}); failure != nil {
		return false, false, t.server.health.Failed(begin, time.Since(sent), failure)
	}
	t.server.onIdentity(server)
	if found.Err != nil {
		return false, false, fmt.Errorf("looking for the tables: %w", found.Err)
	}
	columns := pg.Bigints(found.Result)
	if len(columns) != 3 {
		return false, false, nil
	}
	return columns[0] == 1, columns[2] == 1, nil
}
