package integration

import (
	"context"
	"sync"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// traefikProgram is a real Traefik, built on first use and kept for later runs.
func traefikProgram(t testing.TB) string {
	t.Helper()
	path, err := builtTraefik()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var builtTraefik = sync.OnceValues(func() (string, error) {
	return harness.Traefik(context.Background(), ".")
})
