package admin_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// The registry of a restored copy has rows of proxies that count in another cluster: none of them runs here.
func TestProxiesOfAnotherClusterAreNotListedInItsCopy(t *testing.T) {
	dsn := cluster.Open(t, schema.File)
	cluster.Execute(t, dsn, `INSERT INTO rate_limit_nodes (node, epoch, system) VALUES ('there', 1, 42);
		INSERT INTO rate_limit_nodes (node, epoch) VALUES ('here', 1)`)
	db, err := admin.Open(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	nodes, err := db.Nodes(t.Context())
	if err != nil || len(nodes) != 1 || nodes[0].Node != "here" {
		t.Errorf("the proxies are %+v, %v; want that of this cluster alone", nodes, err)
	}
	if n := cluster.Query[int](t, dsn, "SELECT count(*) FROM rate_limit_nodes n WHERE "+schema.NodeIsLive); n != 1 {
		t.Errorf("%d proxies share the limits, want 1", n)
	}
}
