//go:build rehearse

package integration

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// rehearseUpgrade upgrades Postgres with pg_upgrade, as the page says, while proxies keep running. Afterwards
// a key with a used-up quota is still refused. The old and the new Postgres have the same version, because
// Debian offers only one.
func rehearseUpgrade(t *testing.T) {
	r := newRehearsal(t)
	r.startProxies()
	r.awaitDecisions()
	r.ask("/", rehearsedQuota+500, "spent")
	r.ask("/short", rehearsedShort+500, "spent")
	tools := filepath.Dir(cluster.Tool(t, "pg_upgrade"))
	r.env = append(r.env, "OLD_BIN="+tools, "NEW_BIN="+tools)
	r.page("Upgrade", 0)
	r.awaitDecisions()
	r.checkStatuses("after pg_upgrade", map[string]int{"/": http.StatusTooManyRequests,
		"/short": http.StatusTooManyRequests}, "spent")
}

// rehearseReplication upgrades Postgres by logical replication, as the page says, while proxies keep running.
// Afterwards a durable counter is as it was, one that is not durable has begun again, and a change of the
// policy reaches the proxies. Running answers hold their units on the new server, and are charged there once.
// Of a limit with leases, which are in use all the time, no unit is used twice, and few are lost.
func rehearseReplication(t *testing.T) {
	r := newRehearsal(t)
	bin, err := cluster.Download(t.Context(), "18")
	if err != nil {
		t.Fatal(err)
	}
	r.env = append(r.env, "NEW_BIN="+bin)
	tokens, end := rehearsedLimit("tokens", 1000), make(chan struct{})
	tokens["unit"] = "tokens"
	r.startProxies(route{path: "/model", backend: startModel(t, end), limit: tokens})
	r.awaitDecisions()
	r.page("Upgrade by replication", 0)
	r.awaitDecisions()
	r.ask("/", rehearsedQuota+500, "spent")
	r.ask("/short", rehearsedShort+500, "spent")
	cluster.Execute(t, r.dsn, "INSERT INTO rate_limit_tiers (tier, rank) VALUES ('before', 1)")
	var streams []io.Reader
	for _, url := range r.urls {
		_, stream := askModel(t, url+"/model?stream", "X-Key", "k")
		streams = append(streams, stream)
	}
	const held = "SELECT coalesce(sum(held), 0)::bigint FROM rate_limit_counters('tokens', true)"
	holds := r.number(held)
	admitted := int64(0)
	await(t, "leased units", func() bool {
		admitted += r.askEvery(20*time.Millisecond, "/", 50, "leased")
		return r.number(rehearsedCount+" AND key = 'leased'") > admitted
	})
	var load sync.WaitGroup
	var switched atomic.Bool
	load.Go(func() {
		for !switched.Load() {
			admitted += r.askEvery(20*time.Millisecond, "/", 25, "leased")
		}
	})
	began := time.Now()
	r.page("Upgrade by replication", 1)
	r.decidedWithin("the switch", began, 10*time.Second)
	switched.Store(true)
	load.Wait()
	if version := r.text("SHOW server_version"); !strings.HasPrefix(version, "18.") {
		t.Errorf("the proxies' server has the version %s, want 18", version)
	}
	r.checkStatuses("after the switch", map[string]int{"/": http.StatusTooManyRequests,
		"/short": http.StatusOK}, "spent")
	cluster.Execute(t, r.dsn, "INSERT INTO rate_limit_tiers (tier, rank) VALUES ('after', 2)")
	r.awaitPolicyApplied()
	await(t, "held units", func() bool { return holds > 0 && r.number(held) == holds })
	close(end)
	for _, stream := range streams {
		_, _ = io.Copy(io.Discard, stream)
	}
	await(t, "the answers to be charged", func() bool {
		return countOf(t, r.dsn, "tokens", "k") == 800 && r.number(held) == 0
	})
	sum := admitted + r.ask("/", rehearsedQuota+500, "leased")
	if t.Logf("%d admitted until the switch, %d in all", admitted, sum); sum > rehearsedQuota ||
		sum < rehearsedQuota*9/10 {
		t.Errorf("%d were admitted, want %d at most, and about as many", sum, rehearsedQuota)
	}
}
