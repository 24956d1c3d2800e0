package admin

import (
	"context"
	"time"
)

// Node is a proxy, and how far it has got.
type Node struct {
	Node    string  `json:"node"`
	Region  *string `json:"region"`
	Version *string `json:"version"`
	// Behind is how many changes the proxy has yet to apply. Nil is unknown: the proxy has
	// not read the tables since they were restored.
	Behind *int64    `json:"behind"`
	Seen   time.Time `json:"seen"`
	// SecondsAgo is how long ago that was, by the clock of the server.
	SecondsAgo float64 `json:"seconds_ago"`
	// Problems name the rules that the proxy cannot use, and what they should be.
	Problems []string `json:"problems"`
}

// Nodes returns the proxies in the order of their names.
func (d *Database) Nodes(ctx context.Context) ([]Node, error) {
	return rows[Node](ctx, d, `SELECT n.node, n.region, n.version, CASE WHEN coalesce(n.log = 'rate_limit_changes'::regclass, true) THEN (SELECT count(*) FROM rate_limit_changes c WHERE c.seq > n.applied_seq) END,
	n.seen, extract(epoch FROM clock_timestamp() - n.seen)::float8, n.problems FROM rate_limit_nodes n ORDER BY n.node`)
}
