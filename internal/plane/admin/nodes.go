package admin

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

// Node is a proxy, and how far it has got.
type Node struct {
	Node    string  `json:"node"`
	Region  *string `json:"region"`
	Version *string `json:"version"`
	// Live is whether it runs.
	Live bool `json:"live"`
	// Ended is when it stopped in order, and Cannot why it makes no decisions, as the statements that would let it.
	Ended  *time.Time `json:"ended"`
	Cannot *string    `json:"cannot"`
	// Epoch is another number after each start of the process.
	Epoch int64 `json:"epoch"`
	// Policy is whether it has a policy.
	Policy bool `json:"policy"`
	// Behind is how many changes the proxy has yet to apply. Nil is none without a policy, else
	// unknown: the proxy has not read the tables since they were restored.
	Behind *int64 `json:"behind"`
	// Paused is whether it obeys a Pause.
	Paused bool      `json:"paused"`
	Seen   time.Time `json:"seen"`
	// LocalFrom and LocalUntil are when it last limited by itself, because the database made no decisions.
	// Nil is never.
	LocalFrom  *time.Time `json:"local_from"`
	LocalUntil *time.Time `json:"local_until"`
	// SecondsAgo is how long ago that was, by the clock of the server.
	SecondsAgo float64 `json:"seconds_ago"`
	// Problems name the rules that the proxy cannot use, and what they should be.
	Problems []string `json:"problems"`
	// Report is what the proxy does now, if a page is open, see Watch.
	Report json.RawMessage `json:"-"`
	// Elsewhere is whether it counts in another database, and only its policy is here.
	Elsewhere bool `json:"-" db:"-"`
}

// Archive is when a proxy last archived the history to a target, as its configuration says.
type Archive struct {
	Target    string     `json:"target"`
	Node      string     `json:"node"`
	Began     time.Time  `json:"began_at"`
	Succeeded *time.Time `json:"succeeded_at"`
	Failed    *time.Time `json:"failed_at"`
	Problem   *string    `json:"problem"`
	Files     int64      `json:"files"`
}

// Archives returns the targets of daily archives that the role may read about, in the order of their names.
func (d *Database) Archives(ctx context.Context) ([]Archive, error) {
	readable, err := value[bool](ctx, d, "SELECT coalesce(has_table_privilege(to_regclass('rate_limit_archives'), 'SELECT'), false)")
	if err != nil || !*readable {
		return nil, err
	}
	return rows[Archive](ctx, d, "SELECT target, node, began_at, succeeded_at, failed_at, problem, files FROM rate_limit_archives ORDER BY target")
}

// Nodes returns the proxies in the order of their names.
func (d *Database) Nodes(ctx context.Context) ([]Node, error) {
	hasPolicy, err := d.hasTable(ctx, "rate_limit_changes")
	if err != nil {
		return nil, err
	}
	behind := "NULL::bigint"
	if hasPolicy {
		behind = `CASE WHEN n.applied_seq IS NOT NULL AND coalesce(n.log = 'rate_limit_changes'::regclass, true)
		THEN (SELECT count(*) FROM rate_limit_changes c WHERE c.seq > n.applied_seq) END`
	}
	nodes, err := rows[Node](ctx, d, `SELECT n.node, n.region, n.version, `+schema.NodeIsLive+`, n.ended, n.cannot, n.epoch, n.applied_seq IS NOT NULL, `+behind+`,
	n.paused, n.seen, n.local_from, n.local_until, extract(epoch FROM clock_timestamp() - n.seen)::float8, n.problems, n.live FROM rate_limit_nodes n ORDER BY n.node`)
	if err != nil || d.policy == "" {
		return nodes, err
	}
	at, err := d.atPolicy(ctx)
	if err != nil {
		return nil, err
	}
	obeying, err := at.Nodes(ctx)
	return AddObeying(nodes, obeying), err
}

// AddObeying adds to the proxies that count in a database what they have applied of a policy in another one, and
// the proxies that obey this policy and count elsewhere.
func AddObeying(nodes, obeying []Node) []Node {
	for _, n := range obeying {
		same := slices.IndexFunc(nodes, func(other Node) bool { return other.Node == n.Node && other.Epoch == n.Epoch })
		if same < 0 {
			n.Paused = false // that is about another server
			n.Elsewhere = true
			nodes = append(nodes, n)
			continue
		}
		nodes[same].Policy, nodes[same].Behind, nodes[same].Problems = n.Policy, n.Behind, n.Problems
	}
	return nodes
}
