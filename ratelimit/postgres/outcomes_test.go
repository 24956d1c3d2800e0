package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// TestOutcomesOverANetwork states what a user sees of a store on two networks. The first is 50
// ms away from the database, and each request has its decision. On the second, connections break
// again and again in the middle of what they carry. Requests on a connection that breaks have no
// decision, and all decisions that there are are right.
func TestOutcomesOverANetwork(t *testing.T) {
	if raced {
		t.Skip("with the race detector, decisions on a busy machine take longer than the timeout; make test runs this without it, too")
	}
	for driver, open := range drivers.All {
		for name, faults := range map[string]*slownet.Faults{
			"50 ms":              nil,
			"broken connections": {Seed: 1, Bytes: 30_000, Piece: 300},
		} {
			for sees, outcome := range map[string]func(n *network){
				"every request is decided in time":                      decidesEach,
				"looks, refunds and resets are as fast as decisions":    looksRefundsResets,
				"a refused request is charged to no limit":              chargesNoRefused,
				"clients that are refused take nothing from others":     starvesNobody,
				"a short timeout or 1,000 limits fail no other request": failsNoOthers,
				"more requests than can be decided are no outage":       overload,
				"a locked row delays no request on another":             lockedRow,
				"the first burst after a start or an outage is limited": burstAfterOutage,
				"a used-up key is refused while the database hangs":     refusesWhileHanging,
				"tables that are altered fail no request":               alteredTables,
				"a migration that has to wait blocks no other user":     patientMigration,
			} {
				t.Run(fmt.Sprintf("%s/%s/%s", driver, name, sees), func(t *testing.T) {
					t.Parallel()
					n := &network{site: newSite(t), open: open, faults: faults}
					n.exec(postgres.TableSQL)
					n.roundTrip = 50 * time.Millisecond
					if faults != nil {
						n.roundTrip = 10 * time.Millisecond
					}
					n.proxy, n.slow = slownet.ListenFor(t, n.dsn, n.roundTrip)
					outcome(n)
				})
			}
		}
	}
}

// network is a site with a network between it and its stores.
type network struct {
	*site
	open      func(t testing.TB, dsn string) postgres.DB
	proxy     *slownet.Proxy
	slow      string // the DSN that leads over the network
	roundTrip time.Duration
	faults    *slownet.Faults
}

// away opens a store over the network, and begins with the faults when it has a connection.
func (n *network) away(o postgres.Options) *postgres.Store {
	n.t.Helper()
	o.CleanupProbability = -1
	store := n.storeOn(n.open(n.t, n.slow), o)
	takeOne(n.t, store, hitOn("first", 1, false))
	n.proxy.SetFaults(n.faults)
	if n.faults != nil {
		n.proxy.CloseConnections()
	}
	return store
}

// near opens a store beside the database.
func (n *network) near() *postgres.Store { return n.storeOn(n.open(n.t, n.dsn), without) }

// ask asks for a decision with the default timeout.
func (n *network) ask(store ratelimit.Store, hits ...ratelimit.Hit) ([]ratelimit.Decision, error) {
	d := make([]ratelimit.Decision, len(hits))
	err := store.Take(context.Background(), ratelimit.DefaultTimeout, hits, d)
	return d, err
}

// attempts counts requests with and without a decision.
type attempts struct {
	decided, failed atomic.Int64
	last            atomic.Value
}

func (c *attempts) add(err error) {
	if err == nil {
		c.decided.Add(1)
		return
	}
	c.failed.Add(1)
	c.last.Store(err.Error())
}

// most checks that all requests were decided, or a third of them amid faults.
func (n *network) most(what string, c *attempts) {
	n.t.Helper()
	decided, failed := c.decided.Load(), c.failed.Load()
	n.t.Logf("%s: %d decided, %d not", what, decided, failed)
	if n.faults == nil && failed > 0 || decided < (decided+failed)/3 || decided == 0 {
		n.t.Errorf("%s: %d decided, %d not: %v", what, decided, failed, c.last.Load())
	}
}

// pace is the time between the requests of a client.
const pace = 10 * time.Millisecond

func decidesEach(n *network) {
	store := n.away(postgres.Options{})
	var count attempts
	for i := range 40 {
		hits := []ratelimit.Hit{hitOn("a", 1000, false), hitOn("b", 1000, true), hitOn("c", 1000, false)}[:1+i%2*2]
		d, err := n.ask(store, hits...)
		count.add(err)
		if err == nil && !allAllowed(d) {
			n.t.Errorf("request %d: %+v", i, d)
		}
		time.Sleep(pace)
	}
	n.most("requests", &count)
	if used := 1000 - left(n.t, n.near(), hitOn("a", 1000, false)); used < count.decided.Load() || used > 40 {
		n.t.Errorf("%d are charged, %d were decided", used, count.decided.Load())
	}
}

func looksRefundsResets(n *network) {
	store, near := n.away(postgres.Options{}), n.near()
	hit := hitOn("a", 1000, false)
	look, refund := hit, hit
	look.Peek, refund.Cost = true, -2
	var looks, refunds, resets attempts
	for range 10 {
		takeOne(n.t, near, ratelimit.Hit{Limit: hit.Limit, Key: hit.Key, Cost: 10})
		d, err := n.ask(store, look)
		if looks.add(err); err == nil && d[0].Remaining != 990 {
			n.t.Errorf("a look at 990: %+v", d[0])
		}
		time.Sleep(pace)
		_, err = n.ask(store, refund)
		refunds.add(err)
		if remaining := left(n.t, near, hit); remaining != 992 && (err == nil || remaining != 990) {
			n.t.Errorf("a refund of 2 to 990 makes %d, %v", remaining, err)
		}
		time.Sleep(pace)
		resets.add(store.Reset(context.Background(), ratelimit.DefaultTimeout, []ratelimit.Hit{hit}))
		if err := near.Reset(context.Background(), longTime, []ratelimit.Hit{hit}); err != nil {
			n.t.Fatal(err)
		}
		time.Sleep(pace)
	}
	n.most("looks", &looks)
	n.most("refunds", &refunds)
	n.most("resets", &resets)
}

func chargesNoRefused(n *network) {
	store, near := n.away(postgres.Options{MaxBlockedKeys: -1}), n.near()
	user, all := hitOn("user", 1000, false), hitOn("all", 1, true)
	takeOne(n.t, near, all)
	var count attempts
	for range 30 {
		d, err := n.ask(store, user, all)
		if count.add(err); err == nil && allAllowed(d) {
			n.t.Errorf("%+v", d)
		}
		time.Sleep(pace)
	}
	n.most("refusals", &count)
	await.Within(n.t, 20*time.Second, "all transactions to end", func() bool {
		return n.text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid() AND backend_type = 'client backend'") == "0"
	})
	if remaining := left(n.t, near, user); remaining != 1000 {
		n.t.Errorf("refused requests have used %d", 1000-remaining)
	}
}

func starvesNobody(n *network) {
	store, near := n.away(postgres.Options{MaxBlockedKeys: -1}), n.near()
	all, bad := hitOn("all", 60, false), hitOn("user", 1, false)
	bad.Key = "bad"
	takeOne(n.t, near, bad)
	ended := make(chan struct{})
	var group sync.WaitGroup
	for range 5 {
		group.Go(func() {
			for {
				select {
				case <-ended:
					return
				case <-time.After(pace):
					if d, err := n.ask(store, bad, all); err == nil && allAllowed(d) {
						n.t.Errorf("%+v", d)
					}
				}
			}
		})
	}
	var count attempts
	for i := range 40 {
		good := hitOn("user", 1, false)
		good.Key = fmt.Sprint("good", i)
		d, err := n.ask(store, good, all)
		if count.add(err); err == nil && !allAllowed(d) {
			n.t.Errorf("request %d with %d of 60 used: %+v", i, i, d)
		}
		time.Sleep(pace)
	}
	close(ended)
	group.Wait()
	n.most("requests of others", &count)
}
