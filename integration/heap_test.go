package integration

import (
	"regexp"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

var heapOf = regexp.MustCompile(`# HeapAlloc = (\d+)`)

// heapAt is how many bytes a process with pprof at a URL needs, after garbage collections: two, for
// memory that is kept for the next request.
func heapAt(t *testing.T, admin string) int64 {
	t.Helper()
	heapOnceAt(t, admin)
	heapOnceAt(t, admin)
	return heapOnceAt(t, admin)
}

// heapOnceAt is how many bytes a process uses, after a garbage collection.
func heapOnceAt(t *testing.T, admin string) int64 {
	t.Helper()
	text := harness.Ask(t, harness.Get(admin+"/debug/pprof/heap?gc=1&debug=1")).Body
	found := heapOf.FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no heap profile: %.300s", text)
	}
	return number(t, found[1])
}
