package integration

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
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
	limit   *ratelimit.Limit
	maxCost int64 // hits have costs from 1 to maxCost
	key     string

	admitted atomic.Int64 // the sum of costs that passed
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

func (s *shared) byCaddy(t *testing.T, client *http.Client, url string) taker {
	return func(cost int64) (bool, error) {
		response, err := client.Do(harness.Get(url+"/"+s.limit.Prefix, "X-Subject", s.key, "X-Cost",
			strconv.FormatInt(cost, 10)))
		if err != nil {
			return false, err
		}
		defer response.Body.Close()
		if response.StatusCode != 200 && response.StatusCode != 429 {
			t.Errorf("Caddy: status %d, want 200 or 429", response.StatusCode)
		}
		return response.StatusCode == 200, nil
	}
}

// route returns the limit in Caddy.
func (s *shared) route() route {
	return route{path: "/" + s.limit.Prefix, limit: decideAlways(object{"prefix": s.limit.Prefix,
		"algorithm": s.limit.Algorithm.String(),
		"limit":     fmt.Sprint(s.limit.Events, " ", s.limit.Window), "durable": s.limit.Durable,
		"key": "{header.X-Subject}", "cost": "{header.X-Cost}"})}
}

// exhaust takes hits in n goroutines, each until a hit of cost 1 is refused, and adds up the costs that pass.
func (s *shared) exhaust(t *testing.T, n int, take taker) {
	var wait sync.WaitGroup
	for caller := range n {
		wait.Go(func() {
			for i := int64(caller); ; i++ {
				cost := i%s.maxCost + 1
				passes, err := take(cost)
				if err != nil {
					t.Error(err)
					return
				}
				if passes {
					s.admitted.Add(cost)
				} else if cost == 1 {
					return
				}
			}
		})
	}
	wait.Wait()
}

// A Node program with tables that it has created, a store that upgrades the tables, and a Caddy together use
// each quota up to the last unit.
func TestNodeProgramSharesRows(t *testing.T) {
	dsn := cluster.Open(t)
	node := startNode(t, dsn)
	node.tables(t)
	const events, callers = 400, 4
	limits := limitsOfBoth(events)
	store := openStore(t, dsn)
	routes := make([]route, len(limits))
	for i, s := range limits {
		routes[i] = s.route()
	}
	proxy := startCaddy(t, dsn, routes...)
	exhaustAll(t, limits, callers, node, store, proxy.url)
	for _, s := range limits {
		if admitted := s.admitted.Load(); admitted != events {
			t.Errorf("%s: %d admitted, want exactly %d", s.limit.Prefix, admitted, events)
		}
		checkRow(t, dsn, s)
	}
	node.tables(t) // as a program that is deployed later
}

// checkRow checks that a row counts what was admitted. A fixed window may count more, because the Node
// program counts refusals, too.
func checkRow(t *testing.T, dsn string, s *shared) {
	t.Helper()
	count := cluster.Query[int64](t, dsn, "SELECT count FROM "+s.node(1).
		Table+" WHERE prefix = $1 AND key = $2", s.limit.Prefix, s.key)
	admitted := s.admitted.Load()
	if count < admitted || count > admitted && s.limit.Algorithm != ratelimit.FixedWindow {
		t.Errorf("%s: the row counts %d, want the %d that were admitted", s.limit.Prefix, count, admitted)
	}
}

// limitsOfBoth returns limits that both sides can share.
func limitsOfBoth(events int64) (limits []*shared) {
	for _, durable := range []bool{false, true} {
		for _, a := range []ratelimit.Algorithm{ratelimit.SlidingWindow, ratelimit.FixedWindow} {
			s := &shared{limit: &ratelimit.Limit{Prefix: a.String() + onOff(durable), Algorithm: a,
				Events: events, Window: time.Hour, Durable: durable},
				maxCost: 3, key: "user:1"}
			if a == ratelimit.FixedWindow {
				// The Node program counts its refusals: with 2 left, a refused hit of cost 3 uses them up.
				s.maxCost = 1
			}
			limits = append(limits, s)
		}
	}
	return limits
}

// exhaustAll uses up the limits by the Node program, the store and Caddy concurrently.
func exhaustAll(t *testing.T, limits []*shared, callers int, node *nodeProgram, store ratelimit.Store,
	url string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers * len(limits)},
		Timeout: time.Minute}
	defer client.CloseIdleConnections()
	var wait sync.WaitGroup
	for _, s := range limits {
		takers := map[string]taker{"node": s.byNode(node), "the store": s.byStore(store),
			"Caddy": s.byCaddy(t, client, url)}
		for name, take := range takers { // each passes at least once, however slow it is
			if passes, err := take(1); err != nil || !passes {
				t.Errorf("%s: %s: the first hit: %v, %v, want true", s.limit.Prefix, name, passes, err)
			}
			s.admitted.Add(1)
		}
		for _, take := range takers {
			wait.Go(func() {
				s.exhaust(t, callers, take)
			})
		}
	}
	wait.Wait()
}
