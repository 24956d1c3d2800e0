package admin

import (
	"context"
	"slices"
	"time"
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
	Behind *int64    `json:"behind"`
	Seen   time.Time `json:"seen"`
	// LocalFrom and LocalUntil are when it last limited by itself, because the database made no decisions.
	// Nil is never.
	LocalFrom  *time.Time `json:"local_from"`
	LocalUntil *time.Time `json:"local_until"`
	// SecondsAgo is how long ago that was, by the clock of the server.
	SecondsAgo float64 `json:"seconds_ago"`
	// Problems name the rules that the proxy cannot use, and what they should be.
	Problems []string `json:"problems"`
	// Elsewhere is whether it counts in another database, and only its policy is here.
	Elsewhere bool `json:"-" db:"-"`
}

// Nodes returns the proxies in the order of their names.
func (d *Database) Nodes(ctx context.Context) ([]Node, error) {
	w := d.work(ctx)
	nodes := list[Node](w, `SELECT p.node, p.region, p.version, p.live, p.ended, p.cannot, p.epoch, p.policy, p.behind, p.seen, p.local_from, p.local_until, p.seconds_ago, p.problems
FROM rate_limit_proxies p ORDER BY node`)
	if w.err != nil || d.policy == "" {
		return nodes, w.err
	}
	at, err := d.atPolicy(ctx)
	if err != nil {
		return nil, err
	}
	obeying, err := at.Nodes(ctx)
	return addObeying(nodes, obeying), err
}

// addObeying adds to the proxies that count in a database what they have applied of a policy in another one, and
// the proxies that obey this policy and count elsewhere.
func addObeying(nodes, obeying []Node) []Node {
	for _, n := range obeying {
		same := slices.IndexFunc(nodes, func(other Node) bool { return other.Node == n.Node && other.Epoch == n.Epoch })
		if same < 0 {
			n.Elsewhere = true
			nodes = append(nodes, n)
			continue
		}
		nodes[same].Policy, nodes[same].Behind, nodes[same].Problems = n.Policy, n.Behind, n.Problems
	}
	return nodes
}

// Changes returns the changes of the last duration, the latest first, at most so many: rows of rate_limit_changed.
func (d *Database) Changes(ctx context.Context, since time.Duration, most int) ([]Row, error) {
	return d.Ask(ctx, `SELECT seq, at, by, kind, ref, key_id, before::text::json, after::text::json, which, what
FROM rate_limit_changed WHERE at >= now() - $1::interval ORDER BY at DESC, seq DESC LIMIT $2::bigint`,
		intervalOf(since), int64(most))
}
