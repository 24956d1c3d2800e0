package docs

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/memory"
)

// maxThroughput sends events to a limit of n events a minute, one after the other, and waits for RetryAfter
// after each refusal. It returns the average number of events that pass in a window, and the longest wait.
func maxThroughput(t *testing.T, algorithm ratelimit.Algorithm, n int64) (perWindow float64,
	longest time.Duration) {
	t.Helper()
	start := time.Date(2030, time.January, 1, 0, 0, 0, 0, time.UTC)
	now := start
	store, err := memory.New(memory.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	limiter, err := ratelimit.NewLimiter(store, ratelimit.Limit{Prefix: "p", Algorithm: algorithm, Events: n,
		Window: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	// In the first window the full quota passes in one burst. So windows count only from the tenth on.
	const from, windows = 10, 20
	passed := 0
	for now.Before(start.Add((from + windows) * time.Minute)) {
		d, err := limiter.Take(context.Background(), "k", 1)
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed {
			longest = max(longest, d.RetryAfter)
			now = now.Add(d.RetryAfter)
			continue
		}
		if !now.Before(start.Add(from * time.Minute)) {
			passed++
		}
	}
	return float64(passed) / windows, longest
}

var smallLimit = regexp.MustCompile(`(?m)^\| (\d+) \| (\S+) \| (\S+) \| (\d+) s \|$`)

// The table of small limits in docs/algorithms.md has the throughput and the waits of sliding_window. With
// sliding_log and gcra, the full limit passes in each window.
func TestTableOfSmallLimits(t *testing.T) {
	rows := smallLimit.FindAllStringSubmatch(section(t, "docs/algorithms.md", "Small limits"), -1)
	if len(rows) < 5 {
		t.Fatalf("the table has %d rows, want at least 5", len(rows))
	}
	for _, row := range rows {
		n, err := strconv.ParseInt(row[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		perWindow, longest := maxThroughput(t, ratelimit.SlidingWindow, n)
		seconds := (longest + time.Second - 1) / time.Second // as Retry-After is rounded
		windows := strconv.FormatFloat(float64(longest.Round(10*time.Millisecond).Milliseconds())/60000, 'g',
			4, 64)
		want := []string{fmt.Sprint(perWindow), windows, fmt.Sprint(int64(seconds))}
		if !slices.Equal(row[2:], want) {
			t.Errorf("a limit of %d: the table has %q, want %q", n, row[2:], want)
		}
		for _, a := range []ratelimit.Algorithm{ratelimit.SlidingLog, ratelimit.GCRA} {
			if perWindow, _ := maxThroughput(t, a, n); perWindow != float64(n) {
				t.Errorf("%v, a limit of %d: %v events in a window, want %[2]d", a, n, perWindow)
			}
		}
	}
}
