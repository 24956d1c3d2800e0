package edge_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/internal/store/memory"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestARequestThatWaitsIsChargedOnceOnTrial, however often its other limits are asked.
func TestARequestThatWaitsIsChargedOnceOnTrial(t *testing.T) {
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	flight, err := edge.ReadLimit(edge.Values{"prefix": "flight", "algorithm": "in_flight", "limit": "1", "wait": "up to 500ms"})
	if err != nil {
		t.Fatal(err)
	}
	defer flight.Wait.Open("flight")()
	trial := ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "trial", Events: 100, Window: time.Hour}, Key: "k", Cost: 1, Apart: true}
	d := &edge.Decider{Store: store, Timeout: time.Second}
	for _, want := range []int{0, http.StatusTooManyRequests} {
		f := edge.NewFlight(t.Context())
		defer f.End()
		q := &edge.Request{Set: &edge.Set{Waits: []*edge.Wait{flight.Wait, nil}}, Flight: f, Hits: []ratelimit.Hit{{Limit: &flight.Limit, Key: "k", Cost: 1}, trial}, Decisions: make([]ratelimit.Decision, 2)}
		f.Attach(q.Hits, q.Set.Waits)
		if o := d.TakeInTurn(q); o.Status != want || !q.Decisions[1].Allowed || q.Hits[1].Peek {
			t.Errorf("%+v, want status %d; %+v", o, want, q.Decisions[1])
		}
	}
	trial.Peek = true
	decisions := make([]ratelimit.Decision, 1)
	if err := store.Take(context.Background(), time.Second, []ratelimit.Hit{trial}, decisions); err != nil || decisions[0].Remaining != 98 {
		t.Errorf("%+v, %v: two requests were charged on trial", decisions[0], err)
	}
}
