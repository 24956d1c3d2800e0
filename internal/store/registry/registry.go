// Package registry keeps the row of this process in rate_limit_nodes, the registry of proxies, and counts the
// running proxies there.
//
// A Node counts the requests. Its report is a JSON object in the row, which the view rate_limit_proxies
// reads. About once a second, each store of the process calls Poll, which counts the proxies and renews the
// row. A policy that has applied a change calls Poll at once: commands wait until the row says so.
//
// The files, from the top down: registry.go, node.go.
package registry

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	heartbeatInterval = 3 * time.Second // the time between two writes of the row
	changeInterval    = time.Second     // the same if the policy has changed
	pollTimeout       = 2 * time.Second
	leaveTimeout      = 500 * time.Millisecond
	failurePause      = 10 * time.Second // after a failed write, so that the server logs few errors
	// fewerWait is the time for which all polls must find fewer proxies, before Poll returns fewer. After a
	// crash of the server, the table is empty, and other proxies may need failurePause to write their rows.
	fewerWait = 12 * time.Second
)

// rowSQL renews the row, or ends it if the report is NULL. liveSQL counts the proxies. cannotSQL returns the
// steps without which the process cannot make decisions, or NULL, and the revision of the tables. It needs no
// privilege on a table.
const (
	rowSQL    = `SELECT rate_limit_heartbeat($1::text, $2::bigint, $3::text::json)::text`
	liveSQL   = `SELECT rate_limit_live_proxies()`
	cannotSQL = `SELECT ` + schema.MissingGrants + `, ` + schema.Revision
)

// Poll renews the row if that is due, and returns the number of running proxies, or 0 before the first count.
// The error is nil if the connection failed, because requests report that, and if the previous renewal failed
// in the same way.
func (n *Node) Poll(ctx context.Context, db pgdb.DB, now time.Time) (int64, error) {
	n.polling.Lock()
	defer n.polling.Unlock()
	if now.Before(n.retryAt) {
		return n.proxies, nil
	}
	live := &pgdb.Statement{SQL: liveSQL}
	cannot := &pgdb.Statement{SQL: cannotSQL}
	harmful := &pgdb.Statement{SQL: pg.HarmfulSQL}
	renewal := &pgdb.Statement{SQL: rowSQL}
	statements := []*pgdb.Statement{live}
	applied := ""
	if n.Due(now) && !n.ending {
		var text string
		text, applied = n.encode(now)
		renewal.Args = []any{n.Name, n.Epoch, text}
		statements = append(statements, cannot, harmful, renewal)
	}
	if db.Run(ctx, pollTimeout, statements) != nil {
		n.countedAt = now
		return n.proxies, nil
	}
	if counts := pg.Bigints(live.Result); len(counts) == 1 && (counts[0] >= n.proxies ||
		counts[0] > 0 && now.Sub(n.countedAt) >= fewerWait) {
		n.proxies, n.countedAt = counts[0], now
	}
	if len(statements) == 1 {
		return n.proxies, nil
	}
	err := renewal.Err
	if err == nil {
		n.mu.Lock()
		n.writtenAt, n.written = now, applied
		n.mu.Unlock()
	} else {
		n.retryAt = now.Add(failurePause)
		err = fmt.Errorf("the registry of proxies: %w. Limits work without it; `nodes` does not show this "+
			"proxy. Its tables are made by schema.sql, and its role needs "+
			"SELECT rate_limit_grant(ROLE, 'proxy')", err)
	}
	var lacks, outdated error
	n.cannot, n.outdated = "", ""
	if found, _ := pg.Columns(cannot.Result); len(found) == 2 {
		n.cannot, n.outdated = string(found[0]), schema.Outdated(string(found[1]))
	}
	if n.cannot != "" {
		lacks = errors.New("this proxy makes no decisions, because its role lacks privileges. To let it: " +
			n.cannot)
	}
	if n.outdated != "" && applied == "" { // else the policy says so
		outdated = errors.New(n.outdated)
	}
	err = errors.Join(err, lacks, outdated, pg.HarmfulError(harmful))
	before := n.failure
	if n.failure = fmt.Sprint(err); n.failure == before {
		err = nil
	}
	return n.proxies, err
}

// End ends the row of a process that is about to end, before its stores are closed. Poll no longer renews it.
func (n *Node) End(db pgdb.DB) {
	n.polling.Lock()
	defer n.polling.Unlock()
	n.ending = true
	n.end(db)
}

// end writes the last report, and ends the row. If this fails, the row looks like the row of a proxy that
// vanished. The caller holds polling.
func (n *Node) end(db pgdb.DB) {
	if n.writtenAt.IsZero() {
		return
	}
	text, _ := n.encode(time.Now())
	_ = db.Run(context.Background(), leaveTimeout, []*pgdb.Statement{
		{SQL: rowSQL, Args: []any{n.Name, n.Epoch, text}, Unnamed: true},
		{SQL: rowSQL, Args: []any{n.Name, n.Epoch, nil}, Unnamed: true}})
}

// Leave ends the row if no other store of the process shares it. A store calls Leave after its last Poll,
// before it closes db.
func (n *Node) Leave(db pgdb.DB) {
	n.polling.Lock()
	defer n.polling.Unlock()
	if atomic.AddInt32(&n.stores, -1) <= 0 {
		n.end(db)
	}
}
