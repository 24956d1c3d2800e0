package shards

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// The statements of a shard run at the server that has the shard, on the table in which Citus has the rows
// (the placement). Citus moves a shard to another server: it copies the rows, while it holds a lock that the
// guard of each statement takes as well. So a statement is before or after a move, and after it fails with
// serialization_failure, because the shard is not here. A shard keeps the numbers of its placements in a
// move. So the texts of statements stay, and only the route changes.
//
// A route is read again if a shard is not where it was, or if its server cannot be reached: from any server,
// because each has the metadata of Citus. The statements are then sent again, since they had no effect. A
// statement that was sent and not answered is not sent again.

// routes leads to the server of each shard.
type routes struct {
	db        pgdb.DB // of the database
	elsewhere reaching
	schemas   []string                  // by shard; find sets it
	tables    []map[string]engine.Table // by shard; find sets it
	reading   sync.Mutex                // of again
	closing   sync.WaitGroup            // connections to servers without a shard

	mu      sync.Mutex // guards all that follows
	closed  bool
	to      []route            // by shard
	servers map[string]pgdb.DB // by address
	read    time.Time          // when the routes were read
}

// route leads to the server of a shard.
type route struct {
	address string
	db      pgdb.DB
}

const (
	// tablesOfShard is the number of tables of a shard.
	tablesOfShard = 3
	// routesTimeout bounds a read of the routes from one of several servers. A caller with much time waits
	// for up to mostRoutesTimeout.
	routesTimeout     = 100 * time.Millisecond
	mostRoutesTimeout = 500 * time.Millisecond
)

func newRoutes(db pgdb.DB, e reaching) *routes {
	return &routes{db: db, elsewhere: e, servers: map[string]pgdb.DB{}}
}

// find reports whether the counts are in shards. If they are, it sets the routes. It also reports whether the
// connection has failed.
func (r *routes) find(ctx context.Context) (bool, bool, error) {
	shards := &pgdb.Statement{SQL: schema.ShardsReady, Unnamed: true}
	if err := r.db.Run(ctx, []*pgdb.Statement{shards}); err != nil {
		return false, true, err
	}
	if shards.Err != nil {
		return false, false, fmt.Errorf("looking for shards: %w", shards.Err)
	}
	if found := pg.Bigints(shards.Result); len(found) != 1 || found[0] != 1 {
		return false, false, nil
	}
	shards = &pgdb.Statement{SQL: schema.ShardNames, Unnamed: true}
	if err := r.db.Run(ctx, []*pgdb.Statement{shards}); err != nil {
		return false, true, err
	}
	names, err := pg.Columns(shards.Result)
	if err == nil {
		err = shards.Err
	}
	if err != nil || len(names) == 0 {
		return false, false, fmt.Errorf("reading rate_limit_shards(): %w", err)
	}
	r.schemas = nil
	for _, name := range names {
		r.schemas = append(r.schemas, string(name))
	}
	to, tables, err := r.ask(ctx, r.db)
	if err != nil {
		return false, false, err
	}
	r.tables = tables
	r.set(to)
	return true, false, nil
}

// address is a server of shards.
type address struct {
	host string
	port int
}

// String returns the host with its port.
func (a address) String() string { return net.JoinHostPort(a.host, strconv.Itoa(a.port)) }

// errIncomplete is the error of a server without the tables of all shards: it may have left the cluster.
var errIncomplete = errors.New("the server does not list the tables of all shards")

// ask reads the routes from a server.
func (r *routes) ask(ctx context.Context, db pgdb.DB) ([]address, []map[string]engine.Table, error) {
	s := &pgdb.Statement{SQL: schema.ShardRoutes, Args: []any{r.schemas}, Unnamed: true}
	if err := db.Run(ctx, []*pgdb.Statement{s}); err != nil {
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
	tables := make([]map[string]engine.Table, len(r.schemas))
	for at := 0; at+width <= len(columns); at += width {
		shard := int(pg.Bigint(columns[at])) - 1
		if shard < 0 || shard >= len(to) {
			return nil, nil, pg.ErrColumns
		}
		named := tables[shard]
		if named == nil {
			named = map[string]engine.Table{}
			tables[shard] = named
		}
		t := engine.Table{Name: string(columns[at+2]), Guard: ", " + string(columns[at+3])}
		named[string(columns[at+1])] = t
		host, port := string(columns[at+4]), int(pg.Bigint(columns[at+5]))
		a := address{host: host, port: port}
		to[shard] = a
	}
	for shard := range tables {
		if len(tables[shard]) != tablesOfShard {
			return nil, nil, errIncomplete
		}
	}
	return to, tables, nil
}

// set sets the routes. It opens the servers that are new, and closes those that have no shard.
func (r *routes) set(to []address) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read = time.Now()
	if r.closed {
		return
	}
	used := map[string]pgdb.DB{}
	next := make([]route, 0, len(to))
	for _, at := range to {
		name := at.String()
		db := used[name]
		if db == nil {
			db = r.servers[name]
		}
		if db == nil {
			opened, err := r.elsewhere.At(at.host, at.port)
			db = opened
			if err != nil {
				db = newFailing(err)
			}
		}
		used[name] = db
		next = append(next, route{address: name, db: db})
	}
	for name, db := range r.servers {
		if used[name] == nil {
			startClose(&r.closing, db)
		}
	}
	r.servers = used
	r.to = next
}

// of returns the route to a shard.
func (r *routes) of(shard int) route {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.to[shard]
}

// again reads the routes again after a failure at a route to a shard, and reports whether the shard is
// elsewhere now. reached reports whether the server of the route answers.
func (r *routes) again(ctx context.Context, shard int, failed route, reached bool, since time.Time) bool {
	r.reading.Lock()
	defer r.reading.Unlock()
	if ctx.Err() != nil {
		return false
	}
	r.mu.Lock()
	known := r.to[shard].address != failed.address || r.read.After(since)
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
	if !known {
		limit := routesTimeout
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline)/4 > limit {
			limit = time.Until(deadline) / 4
		}
		if limit > mostRoutesTimeout {
			limit = mostRoutesTimeout
		}
		for _, db := range dbs {
			limited, cancel := context.WithTimeout(ctx, limit)
			to, _, err := r.ask(limited, db)
			cancel()
			if err == nil {
				r.set(to)
				break
			}
			if ctx.Err() != nil {
				break
			}
		}
	}
	return r.of(shard).address != failed.address
}

// close closes the connections to the servers of the shards.
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
