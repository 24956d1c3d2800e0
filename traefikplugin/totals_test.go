package traefikplugin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// A proxy's row in the registry counts the requests since its start and lists the busiest limits.
func TestRegistryCountsDecisions(t *testing.T) {
	dsn := cluster.Open(t)
	p := newProcess(100 * time.Millisecond)
	var next passCounter
	newHandler := func(limit, lease string) *handler {
		return newMiddleware(t, t.Context(), p, &next, validConfig(Settings{"dsn": dsn, "prefix": limit,
			"limit": limit, "lease": lease, "timeout": "30s", "onError": "deny"}))
	}
	leased := newHandler("1000000 1h", "5%")
	for ; next.n.Load() < 1000 || *leased.leased.admitted == 0; get(leased) {
		if next.n.Load() == 20000 {
			t.Fatal("no request was admitted by a lease")
		}
	}
	admitted := next.n.Load()
	few := newHandler("2 1h", "off")
	for range 5 {
		get(few)
	}
	want := fmt.Sprintf("admitted=%d limited=3 failed=0 locally=0 leased=%d/0 few=2/3",
		admitted+2, admitted)
	got := ""
	await.Within(t, time.Minute, "the row in the registry", func() bool {
		conn := cluster.Watch(t, t.Context(), dsn)
		defer conn.Close(t.Context())
		err := conn.QueryRow(t.Context(), `SELECT format(
				'admitted=%s limited=%s failed=%s locally=%s leased=%s/%s few=%s/%s',
				admitted, limited, failed, locally, busiest->'1000000 1h'->0, busiest->'1000000 1h'->1,
				busiest->'2 1h'->0, busiest->'2 1h'->1) FROM rate_limit_proxies`).Scan(&got)
		return err == nil && strings.Contains(got, " limited=3 ")
	})
	if got != want {
		t.Errorf("registry row %s, want %s", got, want)
	}
}
