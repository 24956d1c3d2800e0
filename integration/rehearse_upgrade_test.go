//go:build rehearse

package integration

import (
	"net/http"
	"path/filepath"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// rehearseUpgrade upgrades Postgres under proxies that stay in use. Both versions are the same, because
// Debian has only one.
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
