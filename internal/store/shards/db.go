package shards

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// moveWait is the time between two reads of the routes while no server has a shard: a move reaches the
// servers one after the other.
const moveWait = 5 * time.Millisecond

// failingDB is the DB of a server with an address that cannot be used.
type failingDB struct{ err error }

func newFailing(err error) pgdb.DB { return &failingDB{err: err} }

func (d *failingDB) Run(_ context.Context, statements []*pgdb.Statement) error {
	for _, s := range statements {
		s.Err = pg.ErrNotSent
	}
	return d.err
}
func (d *failingDB) Exec(context.Context, string) error { return d.err }
func (d *failingDB) Close()                             {}

// shardDB is the DB of a shard: it runs statements where the shard is.
type shardDB struct {
	routes *routes
	shard  int
}

// newShardDB returns the DB of a shard. In Yaegi, a literal in a loop would get the last value.
func newShardDB(r *routes, shard int) pgdb.DB { return &shardDB{routes: r, shard: shard} }

// MaxConns returns the bound on connections of the database, which each of its servers has.
func (d *shardDB) MaxConns() int {
	if b, ok := d.routes.db.(engine.Bounded); ok {
		return b.MaxConns()
	}
	return math.MaxInt32
}

// Run implements DB. A statement that does not find the shard gets the code of a serialization failure, so
// that the store sends it again.
func (d *shardDB) Run(ctx context.Context, statements []*pgdb.Statement) error {
	left := statements
	for len(left) > 0 {
		to := d.routes.of(d.shard)
		began := time.Now()
		err := to.db.Run(ctx, left)
		if err == nil {
			if lostShard(left) {
				d.notHere(ctx, to, left, began)
			}
			return nil
		}
		left = unsent(left)
		if len(left) == 0 || ctx.Err() != nil || !d.routes.again(ctx, d.shard, to, false, began) {
			return fmt.Errorf("shard %d at %s: %w", d.shard, to.address, err)
		}
	}
	return nil
}

// unsent returns the statements that did not reach the server.
func unsent(statements []*pgdb.Statement) []*pgdb.Statement {
	var all []*pgdb.Statement
	for _, s := range statements {
		if errors.Is(s.Err, pg.ErrNotSent) {
			all = append(all, s)
		}
	}
	return all
}

// lostShard reports whether a statement did not find the shard. A serialization failure has the code of the
// guard, but not its text.
func lostShard(statements []*pgdb.Statement) bool {
	for _, s := range statements {
		switch s.Code {
		case pg.UndefinedTable, pg.NoSuchConstraint:
			return true
		case pg.SerializationFailure:
			if text := s.Err.Error(); strings.Contains(text, "is not here") ||
				strings.Contains(text, "is being moved") {
				return true
			}
		}
	}
	return false
}

// notHere reads the routes again after a statement that did not find the shard.
func (d *shardDB) notHere(ctx context.Context, at route, statements []*pgdb.Statement, began time.Time) {
	if !d.routes.again(ctx, d.shard, at, true, began) {
		health.Sleep(ctx, moveWait)
	}
	for _, s := range statements {
		switch s.Code {
		case pg.UndefinedTable, pg.NoSuchConstraint:
			s.Code = pg.SerializationFailure
		}
	}
}

// Exec implements DB.
func (d *shardDB) Exec(ctx context.Context, sql string) error {
	return d.routes.of(d.shard).db.Exec(ctx, sql)
}

// Close implements DB. The routes close the connections, which other shards use as well.
func (d *shardDB) Close() {}
