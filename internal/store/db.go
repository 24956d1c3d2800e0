package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// moveWait is the time between two reads of the routes while no server has a shard, which happens during a
// move, because the servers change their metadata one after the other.
const moveWait = 5 * time.Millisecond

// shardDB is the DB of a shard. It runs statements on the shard's server.
type shardDB struct {
	routes *routes
	shard  int
}

// newShardDB returns the DB of a shard. It is a function because in Yaegi a literal in a loop would get the
// loop's last value.
func newShardDB(r *routes, shard int) pgdb.DB { return &shardDB{routes: r, shard: shard} }

// MaxConns returns the bound on the connections to each server.
func (d *shardDB) MaxConns() int {
	if b, ok := d.routes.db.(engine.Bounded); ok {
		return b.MaxConns()
	}
	return math.MaxInt32
}

// Run implements pgdb.DB. A statement that did not find the shard gets the code of a serialization failure,
// so that the engine retries it.
func (d *shardDB) Run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error {
	for {
		r := d.routes.routeTo(d.shard)
		start := time.Now()
		err := r.db.Run(ctx, timeout, statements)
		if err == nil {
			if lostShard(statements) && !d.routes.reroute(ctx, timeout, d.shard, r, true, start) {
				health.Sleep(ctx, moveWait)
			}
			return nil
		}
		if !errors.Is(err, pgdb.ErrNotSent) || errors.Is(err, pg.ErrBusy) || ctx.Err() != nil ||
			!d.routes.reroute(ctx, timeout, d.shard, r, false, start) {
			return fmt.Errorf("shard %d at %s: %w", d.shard, r.address, err)
		}
	}
}

// lostShard reports whether a statement did not find the shard, and gives it the code of a serialization
// failure.
func lostShard(statements []*pgdb.Statement) bool {
	lost := false
	for _, s := range statements {
		switch s.Code {
		case pg.UndefinedTable, pg.NoSuchConstraint, pg.ShardNotHere, pg.ShardMoves:
			s.Code = pg.SerializationFailure
			lost = true
		}
	}
	return lost
}

// Exec implements pgdb.DB.
func (d *shardDB) Exec(ctx context.Context, timeout time.Duration, sql string) error {
	return d.routes.routeTo(d.shard).db.Exec(ctx, timeout, sql)
}

// Close implements pgdb.DB. It does nothing, because shards share the connections, which routes closes.
func (d *shardDB) Close() {}
