package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store/statement"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// The statements of a shard run on the server that has the shard, on the table in which Citus stores the rows
// (the placement). When Citus moves a shard to another server, Citus copies the rows under a lock, which the
// guard of each statement takes, too. A statement therefore runs before or after a move. After the move, a
// statement fails on the old server with RL001. A shard keeps the names of its placements, so
// a move changes the route of the shard, but not the texts of its statements.
//
// routes reads the routes again if a statement did not find its shard, or if the server of the shard cannot
// be reached. Every server can list the routes, because each has the metadata of Citus. Statements that
// certainly had no effect are then sent to the new server. A statement that was sent and not answered is not
// retried.

// routes holds the server of each shard, and the connections to these servers.
type routes struct {
	db        pgdb.DB // the database
	connector connector
	schemas   []string                     // by shard; find sets it
	tables    []map[string]statement.Table // by shard; find sets it
	reading   sync.Mutex                   // held while reroute reads the routes
	closing   sync.WaitGroup               // counts connections that are being closed

	mu      sync.Mutex // guards the fields below
	closed  bool
	byShard []route            // by shard
	servers map[string]pgdb.DB // by address
	readAt  time.Time          // the time of the last read of the routes
}

// route is the server of a shard.
type route struct {
	address string
	db      pgdb.DB
}

const (
	// tablesPerShard is the number of tables of a shard.
	tablesPerShard = 4
	// findTimeout bounds each statement of find. It is short, because a network may drop the packets of the
	// first one.
	findTimeout = 2 * time.Second
	// routesTimeout bounds a read of the routes from one server. A caller with a long timeout waits longer,
	// up to maxRoutesTimeout.
	routesTimeout    = 100 * time.Millisecond
	maxRoutesTimeout = 500 * time.Millisecond
)

// find reports whether the counts are in shards, and sets the routes if they are. h is the database's Health.
func (r *routes) find(ctx context.Context, h *health.Health) (bool, error) {
	ready, err := r.query(ctx, h, schema.ShardsReady)
	if err != nil || len(ready) != 1 || pg.Bigint(ready[0]) != 1 {
		return false, err
	}
	names, err := r.query(ctx, h, schema.ShardNames)
	if err != nil {
		return false, err
	}
	if len(names) == 0 {
		return false, errors.New("rate_limit_shards() returns no shards")
	}
	r.schemas = nil
	for _, name := range names {
		r.schemas = append(r.schemas, string(name))
	}
	to, tables, err := r.read(ctx, findTimeout, r.db)
	if err != nil {
		return false, err
	}
	r.tables = tables
	return true, r.set(to)
}

// query returns the columns of a statement's result from the database.
func (r *routes) query(ctx context.Context, h *health.Health, sql string) ([][]byte, error) {
	s := &pgdb.Statement{SQL: sql, Unnamed: true}
	sent := time.Now()
	if err := r.db.Run(ctx, findTimeout, []*pgdb.Statement{s}); err != nil {
		return nil, h.Failed(sent, findTimeout, err)
	}
	if s.Err != nil {
		return nil, fmt.Errorf("looking for shards: %w", s.Err)
	}
	return pg.Columns(s.Result)
}

// address is the host and the port of a server.
type address struct {
	host string
	port int
}

// String returns the host with its port.
func (a address) String() string { return net.JoinHostPort(a.host, strconv.Itoa(a.port)) }

// errIncomplete is the error for a server that may have left the cluster.
var errIncomplete = errors.New("the server does not list the tables of all shards")

// read reads the address and the tables of each shard from a server.
func (r *routes) read(ctx context.Context, timeout time.Duration, db pgdb.DB) (
	[]address, []map[string]statement.Table, error) {
	s := &pgdb.Statement{SQL: schema.ShardRoutes, Args: []any{r.schemas}, Unnamed: true}
	if err := db.Run(ctx, timeout, []*pgdb.Statement{s}); err != nil {
		return nil, nil, err
	}
	if s.Err != nil {
		return nil, nil, fmt.Errorf("reading where the shards are: %w", s.Err)
	}
	columns, err := pg.Columns(s.Result)
	if err != nil {
		return nil, nil, err
	}
	const width = 6
	to := make([]address, len(r.schemas))
	tables := make([]map[string]statement.Table, len(r.schemas))
	for i := 0; i+width <= len(columns); i += width {
		shard := int(pg.Bigint(columns[i])) - 1
		if shard < 0 || shard >= len(to) {
			return nil, nil, pg.ErrColumns
		}
		named := tables[shard]
		if named == nil {
			named = map[string]statement.Table{}
			tables[shard] = named
		}
		named[string(columns[i+1])] = statement.Table{
			Name: string(columns[i+2]), Guard: ", " + string(columns[i+3])}
		to[shard] = address{host: string(columns[i+4]), port: int(pg.Bigint(columns[i+5]))}
	}
	for shard := range tables {
		if len(tables[shard]) != tablesPerShard {
			return nil, nil, errIncomplete
		}
	}
	return to, tables, nil
}

// set sets the routes. It opens a pgdb.DB for each new server, which connects on first use, and closes the
// connections to servers that no longer have a shard. It fails for an invalid address.
func (r *routes) set(to []address) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readAt = time.Now()
	if r.closed {
		return nil
	}
	used := map[string]pgdb.DB{}
	next := make([]route, 0, len(to))
	for _, a := range to {
		name := a.String()
		if r.servers[name] == nil {
			db, err := r.connector.At(a.host, a.port)
			if err != nil {
				return err
			}
			r.servers[name] = db
		}
		used[name] = r.servers[name]
		next = append(next, route{address: name, db: used[name]})
	}
	for name, db := range r.servers {
		if used[name] == nil {
			startClose(&r.closing, db)
		}
	}
	r.servers = used
	r.byShard = next
	return nil
}

// routeTo returns the route to a shard.
func (r *routes) routeTo(shard int) route {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byShard[shard]
}

// reroute reads the routes again after a call to the server of failed, and reports whether the shard now has
// another server. reached reports whether the call reached the server of failed. since is the time before the
// call. reroute reads nothing if the routes have been read since then.
func (r *routes) reroute(ctx context.Context, timeout time.Duration, shard int, failed route, reached bool,
	since time.Time) bool {
	r.reading.Lock()
	defer r.reading.Unlock()
	if ctx.Err() != nil {
		return false
	}
	r.mu.Lock()
	reread := r.byShard[shard].address != failed.address || r.readAt.After(since)
	dbs := []pgdb.DB{r.db}
	for name, db := range r.servers {
		if name != failed.address {
			dbs = append([]pgdb.DB{db}, dbs...)
		}
	}
	if reached {
		dbs = append([]pgdb.DB{failed.db}, dbs...)
	}
	r.mu.Unlock()
	if !reread {
		limit := timeout / 4
		if limit < routesTimeout {
			limit = routesTimeout
		}
		if limit > maxRoutesTimeout {
			limit = maxRoutesTimeout
		}
		for _, db := range dbs {
			to, _, err := r.read(ctx, limit, db)
			if err == nil {
				err = r.set(to)
			}
			if err == nil || ctx.Err() != nil {
				break
			}
		}
	}
	return r.routeTo(shard).address != failed.address
}

// close closes the connections to the shards' servers.
func (r *routes) close() {
	r.mu.Lock()
	r.closed = true
	servers := r.servers
	r.servers = nil
	r.mu.Unlock()
	for _, db := range servers {
		startClose(&r.closing, db)
	}
	r.closing.Wait()
}

// startClose closes a store or a DB in the background and counts it in closing until it is closed.
func startClose(closing *sync.WaitGroup, c interface{ Close() }) {
	closing.Add(1)
	go func() {
		_ = batch.PanicError(func() { c.Close() })
		closing.Done()
	}()
}
