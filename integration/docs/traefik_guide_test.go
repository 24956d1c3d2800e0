package docs

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// In an empty folder, the steps of docs/traefik.md lead to a request that the documented limit counts. The
// test changes only the addresses.
func TestTheGuideOfTraefikIsEnough(t *testing.T) {
	app := harness.Serve(t, func(http.ResponseWriter, *http.Request) {})
	// The block before it is for a plugin that is published.
	dynamic := strings.Replace(page(t, traefikPage).blocks[3].text, "http://app:8000", app, 1)
	tr, address := runTraefik(t, cluster.Open(t), dynamic)
	tr.Await(t, "a request that is limited", func() bool {
		response := harness.Ask(t, harness.Get("http://"+address, "Host", "api.example.com"))
		return response.Status == http.StatusOK && response.Header.Get("X-RateLimit-Limit") == "100"
	})
}
