package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/results"
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// migrate makes the tables of the registry, unless they are right. It reports whether they may be.
func (r *Registry) migrate(ctx context.Context, now time.Time) bool {
	if r.migrated || r.options.DisableMigration {
		return true
	}
	if now.Before(r.row.refusals.until) {
		return false
	}
	down, err := makeTables(ctx, r.db)
	if down {
		return false
	}
	r.fail("tables", err)
	r.migrated = err == nil
	if err != nil {
		r.row.refusals.add(now)
	}
	return r.migrated
}

// makeTables makes the tables of the registry what they must be. It reports whether the connection failed.
func makeTables(ctx context.Context, db pgdb.DB) (down bool, err error) {
	counts, nodes := &pgdb.Statement{SQL: schema.Ready}, &pgdb.Statement{SQL: schema.NodesReady}
	if err := db.Run(ctx, []*pgdb.Statement{counts, nodes}); err != nil {
		return true, err
	}
	if counts.Err != nil || nodes.Err != nil {
		return false, fmt.Errorf("looking for the tables: %w", errors.Join(counts.Err, nodes.Err))
	}
	// The tables of counts were there.
	if found := results.Bigints(counts.Result); len(found) != 3 || found[0] != 1 || found[2] == 1 {
		return false, schema.ErrRestoring
	}
	if found := results.Bigints(nodes.Result); len(found) == 1 && found[0] == 1 {
		return false, nil
	}
	if err := db.Exec(ctx, schema.NodesOnce); err != nil {
		return ctx.Err() != nil, fmt.Errorf("creating its tables (a role that may create tables can run caddy pg-ratelimit migrate, or schema.sql, instead): %w", err)
	}
	return false, nil
}
