package parts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/results"
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store/chain"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// The statements of a part run at the server that has the part, on the table in which Citus has the
// rows (the shard). Citus moves a part to another server: it copies the rows, while it holds a lock that the
// guard of each statement takes as well. So a statement is before or after a move, and after it fails with
// serialization_failure, because the part is not here. A part keeps the numbers of its shards in a move.
// So the texts of statements stay, and only the route changes.
//
// A route is read again if a part is not where it was, or if its server cannot be reached: from any
// server, because each has the metadata of Citus. The statements are then sent again, since they had no
// effect. A statement that was sent and not answered is not sent again.

// routes are where the parts are.
type routes struct {
	db        pgdb.DB // of the database
	elsewhere reaching
	schemas   []string                 // by part; find sets it
	tables    []map[string]chain.Table // by part; find sets it
	reading   sync.Mutex               // of again
	closing   sync.WaitGroup           // connections to servers without a part

	mu      sync.Mutex // guards all that follows
	closed  bool
	to      []route            // by part
	servers map[string]pgdb.DB // by address
	read    time.Time          // when the routes were read
}

// route is where a part is.
type route struct {
	address string
	db      pgdb.DB
}

const (
	// tablesOfPart is how many tables a part has.
	tablesOfPart = 3
	// routesTimeout is for reading the routes from one server, if there are others. A caller with much time
	// waits for mostRoutesTimeout.
	routesTimeout     = 100 * time.Millisecond
	mostRoutesTimeout = 500 * time.Millisecond
)

func newRoutes(db pgdb.DB, e reaching) *routes {
	return &routes{db: db, elsewhere: e, servers: map[string]pgdb.DB{}}
}

// find reports whether the counts are in parts. If they are, it sets the routes. It also reports whether the connection
// has failed.
func (r *routes) find(ctx context.Context) (bool, bool, error) {
	parts := &pgdb.Statement{SQL: schema.PartsReady, Unnamed: true}
	if err := r.db.Run(ctx, []*pgdb.Statement{parts}); err != nil {
		return false, true, err
	}
	if parts.Err != nil {
		return false, false, fmt.Errorf("looking for parts: %w", parts.Err)
	}
	if found := results.Bigints(parts.Result); len(found) != 1 || found[0] != 1 {
		return false, false, nil
	}
	parts = &pgdb.Statement{SQL: schema.PartNames, Unnamed: true}
	if err := r.db.Run(ctx, []*pgdb.Statement{parts}); err != nil {
		return false, true, err
	}
	names, err := results.Columns(parts.Result)
	if err == nil {
		err = parts.Err
	}
	if err != nil || len(names) == 0 {
		return false, false, fmt.Errorf("reading rate_limit_parts(): %w", err)
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

// address is where a part is.
type address struct {
	host string
	port int
}

// String is the address with its port.
func (a address) String() string { return net.JoinHostPort(a.host, strconv.Itoa(a.port)) }

// errIncomplete is the error of a server that does not know all parts: it may have left the cluster.
var errIncomplete = errors.New("the server does not know the tables of all parts")

// ask reads the routes from a server.
func (r *routes) ask(ctx context.Context, db pgdb.DB) ([]address, []map[string]chain.Table, error) {
	s := &pgdb.Statement{SQL: schema.PartRoutes, Args: []any{r.schemas}, Unnamed: true}
	if err := db.Run(ctx, []*pgdb.Statement{s}); err != nil {
		return nil, nil, err
	}
	if s.Err != nil {
		return nil, nil, fmt.Errorf("reading where the parts are: %w", s.Err)
	}
	columns, err := results.Columns(s.Result)
	if err != nil {
		return nil, nil, err
	}
	const width = 6
	to := make([]address, len(r.schemas))
	tables := make([]map[string]chain.Table, len(r.schemas))
	for at := 0; at+width <= len(columns); at += width {
		part := int(results.Bigint(columns[at])) - 1
		if part < 0 || part >= len(to) {
			return nil, nil, results.ErrColumns
		}
		named := tables[part]
		if named == nil {
			named = map[string]chain.Table{}
			tables[part] = named
		}
		t := chain.Table{Name: string(columns[at+2]), Guard: ", " + string(columns[at+3])}
		named[string(columns[at+1])] = t
		host, port := string(columns[at+4]), int(results.Bigint(columns[at+5]))
		a := address{host: host, port: port}
		to[part] = a
	}
	for part := range tables {
		if len(tables[part]) != tablesOfPart {
			return nil, nil, errIncomplete
		}
	}
	return to, tables, nil
}

// set sets the routes. It opens the servers that are new, and closes those that have no part.
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

// of returns the route to a part.
func (r *routes) of(part int) route {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.to[part]
}

// again reads the routes again after a failure at a route to a part, and reports whether the part is elsewhere
// now. reached is whether the server of the route answers.
func (r *routes) again(ctx context.Context, part int, failed route, reached bool, since time.Time) bool {
	r.reading.Lock()
	defer r.reading.Unlock()
	if ctx.Err() != nil {
		return false
	}
	r.mu.Lock()
	known := r.to[part].address != failed.address || r.read.After(since)
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
	return r.of(part).address != failed.address
}

// close closes the connections to the servers of the parts.
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
