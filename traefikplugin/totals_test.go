package traefikplugin

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// The registry says how many requests the proxy has decided since its start, whether a lease or the database
// decided them, and which limits are the busiest.
func TestTheRegistryHasWhatTheProxyDecided(t *testing.T) {
	dsn := cluster.Open(t)
	p := newProcess(100 * time.Millisecond)
	var next served
	made := func(limit, lease string) *handler {
		c := valid()
		c.Other["dsn"], c.Other["prefix"], c.Other["limit"], c.Other["lease"], c.Other["timeout"],
			c.Other["onError"] = dsn, limit, limit, lease, "30s", "deny"
		return open(t, t.Context(), p, &next, c)
	}
	leased, ok := withLeases(made("1000000 1h", "5%")).(*leasedHandler)
	if !ok {
		t.Fatal("no leases")
	}
	for ; next.n.Load() < 1000 || *leased.admitted == 0; ask(leased) {
		if next.n.Load() == 20000 {
			t.Fatal("no lease admits a request")
		}
	}
	admitted := next.n.Load()
	few := made("2 1h", "off")
	for range 5 {
		ask(few)
	}
	want := []int64{admitted + 2, 3, 0, 0, admitted, 0, 2, 3}
	got := make([]int64, len(want))
	await.Within(t, time.Minute, "the row in the registry", func() bool {
		conn := cluster.Watch(t, t.Context(), dsn)
		defer conn.Close(t.Context())
		err := conn.QueryRow(t.Context(), `SELECT admitted, refused, undecided, locally,
				(busiest->'1000000 1h'->0)::bigint, (busiest->'1000000 1h'->1)::bigint,
				(busiest->'2 1h'->0)::bigint, (busiest->'2 1h'->1)::bigint FROM rate_limit_proxies`).
			Scan(&got[0], &got[1], &got[2], &got[3], &got[4], &got[5], &got[6], &got[7])
		return err == nil && got[1] == want[1]
	})
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("the registry has %d, want %d", got, want)
			break
		}
	}
}
