//go:build rehearse

package integration

import (
	"net/http"
	"path/filepath"
	"testing"

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
	tools := filepath.Dir(cluster.Tool(t, "pg_upgrade"))
	r.env = append(r.env, "OLD_BIN="+tools, "NEW_BIN="+tools)
	r.page("Upgrade", 0)
	r.awaitDecisions()
	r.checkStatuses("after pg_upgrade", map[string]int{"/": http.StatusTooManyRequests}, "spent")
}
