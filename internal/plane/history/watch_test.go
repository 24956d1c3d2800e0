package history_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

// watched adds records of keys, each so many times, and returns what a page shows.
func watched(t *testing.T, w *history.Writer, counts map[string]int) history.Watched {
	t.Helper()
	for key, n := range counts {
		for i := range n {
			r := history.Record{Time: time.Now(), Prefix: "web", Key: key, User: "u-" + key, Address: netip.MustParseAddr("192.0.2.7"), Watched: true}
			if i%2 == 1 {
				r.Outcome, r.Status = history.Limited, 429
			}
			history.Add(w, &r)
		}
	}
	return history.Watch(w, true, map[string][]int64{})
}

func find(list []history.Counted, name string) history.Counted {
	for _, c := range list {
		if c.Name == name {
			return c
		}
	}
	return history.Counted{}
}

// The heaviest senders are exact, also among many thousands of others, and memory is bounded.
func TestAPageHasTheHeaviestSendersAmongMany(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	w, err := history.New(noDB, history.Settings{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	if history.IsWatched(w) {
		t.Error("a page is open before it was opened")
	}
	history.Watch(w, true, map[string][]int64{})
	var last history.Watched
	for second := range 30 {
		counts := map[string]int{"first": 40, "second": 20}
		for i := range 500 {
			counts[fmt.Sprint("other-", second, "-", i)] = 1
		}
		last = watched(t, w, counts)
		now = now.Add(time.Second)
	}
	if c := find(last.Top["keys"], "first"); c.Requests != 1200 || c.Refused != 600 || c.Prefix != "web" {
		t.Errorf("the heaviest key is %+v", c)
	}
	if c := find(last.Top["users"], "u-second"); c.Requests != 600 {
		t.Errorf("the second user is %+v", c)
	}
	if all := last.Top["all"][0]; all.Requests != 30*560 || last.Exact || len(last.Top["keys"]) > 100 {
		t.Errorf("all are %+v, exact is %v, %d keys", all, last.Exact, len(last.Top["keys"]))
	}
	if c := find(last.Top["addresses"], "192.0.2.7"); c.Requests != 30*560 {
		t.Errorf("the address is %+v", c)
	}

	// After ten minutes the counts of now are gone, and after the last page nothing is counted.
	for range 2 {
		now = now.Add(5 * time.Minute)
		last = watched(t, w, map[string]int{"later": 2})
	}
	if find(last.Top["keys"], "first").Requests != 0 || find(last.Top["keys"], "later").Requests != 4 {
		t.Errorf("ten minutes later: %+v", last.Top["keys"])
	}
	requests := map[string][]int64{}
	history.Watch(w, false, requests)
	if counts := requests["web"]; counts[history.Allowed] != 30*530+2 || counts[history.Limited] != 30*30+2 {
		t.Errorf("by prefix: %v", counts)
	}
	if history.IsWatched(w) {
		t.Error("a page is open after it was closed")
	}
}

// Requests that neither a rule nor a limit refused are counted by the reason.
func TestAPageHasTheReasonsOfRefusalsWithoutALimit(t *testing.T) {
	w, err := history.New(noDB, history.Settings{Now: func() time.Time { return time.Unix(1_800_000_000, 0) }})
	if err != nil {
		t.Fatal(err)
	}
	history.Watch(w, true, map[string][]int64{})
	for _, reason := range []string{"unknown_key", "unknown_key", "key_revoked"} {
		history.Add(w, &history.Record{Time: time.Now(), Outcome: history.Rejected, Reason: reason, Status: 401, Watched: true})
	}
	rules := history.Watch(w, true, map[string][]int64{}).Top["rules"]
	if c := find(rules, "reason/unknown_key"); c.Refused != 2 || len(rules) != 2 {
		t.Errorf("the rules are %+v", rules)
	}
}
