//go:build soak

package integration

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// growth records the resources that a process used before each fault. A new process has a new growth, and so
// has a process after reloads: the first ones let Traefik's heap grow by about 20 MB, later ones do not.
type growth struct {
	goroutines []map[string]int // by stack
	heap       []int64
}

const (
	// enoughSamples is the number of samples that show whether something grows.
	enoughSamples = 9
	// moreGoroutines and moreHeap are the differences that count as growth: the minimum of the last third of
	// the samples less the maximum of the first third. A goroutine a minute makes about 4 in ten minutes.
	moreGoroutines = 3
	moreHeap       = 16 << 20
	// maxConnections is max_conns, for each proxy.
	maxConnections = 8 * soakProxies
)

// sample measures the goroutines and the memory of the proxies, and checks the number of their connections.
func (s *soak) sample() {
	s.t.Helper()
	total := ""
	for i, p := range s.proxies {
		g := &s.grown[i]
		stacks := stacksAt(s.t, p.admin)
		g.goroutines = append(g.goroutines, stacks)
		g.heap = append(g.heap, heapOnceAt(s.t, p.admin))
		n := 0
		for _, count := range stacks {
			n += count
		}
		total += fmt.Sprintf(" %s %d goroutines %d MB", p.name, n, g.heap[len(g.heap)-1]>>20)
	}
	n, err := s.servers.number("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client " +
		"backend' AND application_name <> 'soak'")
	if err != nil {
		s.t.Fatal(err)
	}
	if n > maxConnections {
		s.t.Errorf("the proxies have %d connections, want %d at most", n, maxConnections)
	}
	fmt.Printf("        %s, %d connections\n", total, n)
}

// judgeGrowth checks that no resource of a proxy has grown since its last start or reload, and begins a new
// growth.
func (s *soak) judgeGrowth(proxy int) {
	g := s.grown[proxy]
	s.grown[proxy] = growth{}
	if len(g.heap) < enoughSamples {
		return
	}
	seen := map[string]bool{}
	for _, stacks := range g.goroutines {
		for stack := range stacks {
			seen[stack] = true
		}
	}
	for stack := range seen {
		var counts []int64
		for _, stacks := range g.goroutines {
			counts = append(counts, int64(stacks[stack]))
		}
		if hasGrown(counts, moreGoroutines) {
			s.t.Errorf("%s: goroutines: %v at\n%s", s.proxies[proxy].name, counts, stack)
		}
	}
	if hasGrown(g.heap, moreHeap) {
		s.t.Errorf("%s: bytes of the heap: %v", s.proxies[proxy].name, g.heap)
	}
}

// hasGrown reports whether the minimum of the last third of the numbers exceeds the maximum of the first
// third by more.
func hasGrown(numbers []int64, more int64) bool {
	third := len(numbers) / 3
	first, last := numbers[0], numbers[len(numbers)-1]
	for i := range third {
		first, last = max(first, numbers[i]), min(last, numbers[len(numbers)-1-i])
	}
	return last-first >= more
}

var stackLine = regexp.MustCompile(`(?m)^#\t0x[0-9a-f]+\t(\S+?)\+0x`)

// stacksAt counts the goroutines of a process with pprof at a URL, by their functions. It leaves out the
// connections of HTTP, which the clients bound.
func stacksAt(t testing.TB, admin string) map[string]int {
	t.Helper()
	text := harness.Ask(t, harness.Get(admin+"/debug/pprof/goroutine?debug=1")).Body
	counts := map[string]int{}
	for _, block := range strings.Split(text, "\n\n") {
		head, _, _ := strings.Cut(strings.TrimPrefix(block, "goroutine profile: total"), " @")
		n, err := strconv.Atoi(strings.TrimSpace(head[strings.LastIndexByte(head, '\n')+1:]))
		if err != nil || strings.Contains(block, "net/http.(*conn).serve") ||
			strings.Contains(block, "net/http.(*persistConn)") || strings.Contains(block, "connReader") {
			continue
		}
		var functions []string
		for _, line := range stackLine.FindAllStringSubmatch(block, -1) {
			functions = append(functions, line[1])
		}
		counts[strings.Join(functions, "\n")] += n
	}
	return counts
}

var heapOf = regexp.MustCompile(`# HeapAlloc = (\d+)`)

// heapAt returns the bytes that a process with pprof at a URL uses after three garbage collections, because
// the first collection leaves memory that is kept for the next request.
func heapAt(t *testing.T, admin string) (bytes int64) {
	t.Helper()
	for range 3 {
		bytes = heapOnceAt(t, admin)
	}
	return bytes
}

// heapOnceAt returns the bytes that a process uses after a garbage collection.
func heapOnceAt(t *testing.T, admin string) int64 {
	t.Helper()
	profile := harness.Ask(t, harness.Get(admin+"/debug/pprof/heap?gc=1&debug=1")).Body
	match := heapOf.FindStringSubmatch(profile)
	if match == nil {
		t.Fatalf("the heap profile has no HeapAlloc: %.300s", profile)
	}
	n, err := strconv.ParseInt(match[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
