package integration

import (
	"io"
	"net/http"
	"regexp"
	"strconv"
	"testing"
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
	response, err := http.Get(admin + "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	found := heapOf.FindSubmatch(text)
	if found == nil {
		t.Fatalf("no heap profile: %.300s", text)
	}
	n, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
