package edge_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// A proxy reports how many requests a second it has, the time of its batches, and whether requests have no decision, by what
// has happened since its last report.
func TestAProxyReportsItsRatesAndOutages(t *testing.T) {
	type requests = []int64 // by history.OutcomeKind: allowed, limited, blocked, rejected, shadow, failed
	var live edge.Live
	first, second := &history.Writer{}, &history.Writer{}
	start := time.Unix(1000, 0)
	for _, step := range []struct {
		at                time.Duration
		first, second     requests // nil: no handler has the history
		batches, failures int64
		local             bool
		want              string
	}{
		{0, requests{5, 0, 0, 0, 0, 0}, nil, 0, 0, false, "unknown"},
		{time.Second, requests{15, 1, 1, 1, 9, 0}, nil, 100, 0, false, "10 3 0, 1.02 ms"},
		{1200 * time.Millisecond, requests{16, 1, 1, 1, 9, 0}, nil, 100, 0, false, "10 3 0, 1.02 ms"}, // too soon to compare
		{3 * time.Second, requests{19, 1, 1, 1, 9, 10}, nil, 100, 0, false, "2 0 5 now"},
		{10 * time.Second, requests{19, 1, 1, 1, 9, 10}, nil, 100, 0, false, "0 0 0 now"},
		{14 * time.Second, requests{19, 1, 1, 1, 9, 10}, nil, 100, 0, false, "0 0 0 over"},
		{29 * time.Second, requests{19, 1, 1, 1, 9, 10}, nil, 100, 0, false, "0 0 0"},
		{30 * time.Second, requests{19, 1, 1, 1, 9, 10}, nil, 100, 1, false, "0 0 0 now"}, // a batch without an answer
		{31 * time.Second, requests{19, 1, 1, 1, 9, 10}, nil, 200, 1, false, "0 0 0, 1.02 ms over"},
		{60 * time.Second, requests{19, 1, 1, 1, 9, 10}, nil, 200, 2, true, "0 0 0"}, // limits are local
		// A reload. What a history counted before it came is not of the last second.
		{61 * time.Second, requests{20, 1, 1, 1, 9, 10}, requests{1000, 0, 0, 0, 0, 40}, 200, 2, true, "1 0 0"},
		{62 * time.Second, nil, requests{1003, 0, 0, 0, 0, 40}, 200, 2, true, "3 0 0"},
	} {
		r := &edge.Report{Counts: map[string]int64{"batches": step.batches, "failures": step.failures}, Seen: []history.Watched{{}}}
		r.Times.Counts = make([]int64, 20)
		r.Times.Counts[10] = step.batches // 512 to 1024 microseconds
		if step.local {
			r.LocalSince = 1
		}
		counted := map[*history.Writer]map[string][]int64{}
		if step.first != nil {
			counted[first] = map[string][]int64{"p": step.first}
		}
		if step.second != nil {
			counted[second] = map[string][]int64{"p": step.second}
		}
		live.Compare(r, counted, start.Add(step.at))
		got := "unknown"
		if r.Now != nil {
			got = fmt.Sprint(r.Now.Allowed, r.Now.Refused, r.Now.Failed)
		}
		if r.P99MS != nil {
			got += fmt.Sprintf(", %v ms", *r.P99MS)
		}
		if r.Outage != "" {
			got += " " + r.Outage
		}
		if got != step.want {
			t.Errorf("after %v: %s, want %s", step.at, got, step.want)
		}
	}
}
