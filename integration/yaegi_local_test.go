package integration

import (
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
)

// The interpreted plugin charges what it has admitted without the database, and meanwhile stays at its share.
func TestInterpretedPluginRepays(t *testing.T) {
	dsn := cluster.Open(t)
	network, throughNetwork := slownet.ListenFor(t, dsn, 0)
	h := loadPlugin(t).mustHandler(t, emptyOK, object{"dsn": throughNetwork, "prefix": "p", "key": "{path}",
		"limit": "40 1h", "onError": "local", "timeout": "1s"})
	admitted := 0
	take := func() int {
		code := ask(h).Code
		if code == http.StatusOK {
			admitted++
		}
		return code
	}
	await(t, "a decision of the database", func() bool {
		w := ask(h)
		if w.Code == http.StatusOK {
			admitted++
		}
		return w.Header().Get("X-RateLimit-Remaining") != "" && countOf(t, dsn, "p", "%") > 0
	})
	network.SetHanging(true)
	network.CloseConnections()
	for range 30 {
		take()
	}
	network.SetHanging(false)
	await(t, "the limit to be used up in the database", func() bool {
		return take() == http.StatusTooManyRequests && countOf(t, dsn, "p", "%") == 40
	})
	if admitted > 45 { // the database may lack the first requests, and those under way when it was lost
		t.Errorf("%d of 40 requests were admitted, want at most 45", admitted)
	}
}
