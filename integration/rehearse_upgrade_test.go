//go:build rehearse

package integration

import (
	"net/http"
	"path/filepath"
	"strings"
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
// policy reaches the proxies.
func rehearseReplication(t *testing.T) {
	r := newRehearsal(t)
	bin, err := cluster.Download(t.Context(), "18")
	if err != nil {
		t.Fatal(err)
	}
	r.env = append(r.env, "NEW_BIN="+bin)
	r.startProxies()
	r.awaitDecisions()
	r.page("Upgrade by replication", 0)
	r.awaitDecisions()
	r.ask("/", rehearsedQuota+500, "spent")
	r.ask("/short", rehearsedShort+500, "spent")
	cluster.Execute(t, r.dsn, "INSERT INTO rate_limit_tiers (tier, rank) VALUES ('before', 1)")
	began := time.Now()
	r.page("Upgrade by replication", 1)
	r.decidedWithin("the switch", began, 10*time.Second)
	if version := r.text("SHOW server_version"); !strings.HasPrefix(version, "18.") {
		t.Errorf("the proxies' server has the version %s, want 18", version)
	}
	r.checkStatuses("after the switch", map[string]int{"/": http.StatusTooManyRequests,
		"/short": http.StatusOK}, "spent")
	cluster.Execute(t, r.dsn, "INSERT INTO rate_limit_tiers (tier, rank) VALUES ('after', 2)")
	r.awaitPolicyApplied()
}
