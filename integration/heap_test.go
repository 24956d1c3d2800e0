package integration

import (
	"regexp"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

var heapOf = regexp.MustCompile(`# HeapAlloc = (\d+)`)

// heapAt returns the bytes that a process with pprof at a URL uses after two garbage collections. One would
// leave memory that is kept for the next request.
func heapAt(t *testing.T, admin string) int64 {
	t.Helper()
	heapOnceAt(t, admin)
	heapOnceAt(t, admin)
	return heapOnceAt(t, admin)
}

// heapOnceAt returns the bytes that a process uses after a garbage collection.
func heapOnceAt(t *testing.T, admin string) int64 {
	t.Helper()
	text := harness.Ask(t, harness.Get(admin+"/debug/pprof/heap?gc=1&debug=1")).Body
	found := heapOf.FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no heap profile: %.300s", text)
	}
	return parseInt(t, found[1])
}
