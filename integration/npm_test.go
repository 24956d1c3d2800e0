package integration

import (
	"context"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// In the tests of this file and of npm_guide_test.go, a Node program and this module count in the same rows.
// The Node program runs the documented statements of the npm library with the library's driver, the package
// pg.

// tables are the two tables of counters.
var tables = []struct {
	name    string
	durable bool
}{
	{"rate_limit_ephemeral", false},
	{"rate_limit_durable", true},
}

// shared is a limit that several programs enforce.
type shared struct {
	limit *ratelimit.Limit
	key   string
}

// node returns a hit in the form of the Node program.
func (s *shared) node(cost int64) nodeHit {
	table := tables[0].name
	if s.limit.Durable {
		table = tables[1].name
	}
	return nodeHit{s.limit.Algorithm.String(), table, s.limit.Prefix, s.key, cost, s.limit.Events,
		s.limit.Window.Milliseconds()}
}

// taker reports whether a hit of some cost passes.
type taker func(cost int64) (bool, error)

func (s *shared) byNode(n *nodeProgram) taker {
	return func(cost int64) (bool, error) { return n.take(s.node(cost)) }
}

func (s *shared) byStore(store ratelimit.Store) taker {
	return func(cost int64) (bool, error) {
		decisions := make([]ratelimit.Decision, 1)
		hits := []ratelimit.Hit{{Limit: s.limit, Key: s.key, Cost: cost}}
		err := store.Take(context.Background(), time.Minute, hits, decisions)
		return decisions[0].Allowed, err
	}
}
