package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A client's 100,000 new keys change nothing for other keys: a busy key keeps its lease, and the refusal of a
// used-up key is remembered. If the new keys are refused, too, they use at most half of the remembered rows,
// and the busy key keeps its lease.
func TestFloodOfNewKeysChangesNoOthers(t *testing.T) {
	newKeys := 100_000
	if testing.Short() {
		newKeys = 20_000
	}
	alone := decideDuringFlood(t, 0, false)
	if alone[ratelimit.FromLease] == 0 || alone[ratelimit.FromRemembered] == 0 {
		t.Fatalf("decisions without a flood: %v, want some from a lease and from a refusal", alone)
	}
	for _, refused := range []bool{false, true} {
		during := decideDuringFlood(t, newKeys, refused)
		if refused { // other refusals may be evicted
			during[ratelimit.FromRemembered] = alone[ratelimit.FromRemembered]
		}
		if during[ratelimit.FromLease] < alone[ratelimit.FromLease] ||
			during[ratelimit.FromRemembered] != alone[ratelimit.FromRemembered] {
			t.Errorf("new keys refused: %v: decisions %v, want %v as without new keys", refused, during,
				alone)
		}
	}
}

// decideDuringFlood sends hits on new keys, and between them 200 hits each on a busy key and a used-up key.
// It returns the number of the decisions on these two keys by their source.
func decideDuringFlood(t *testing.T, newKeys int, refused bool) map[ratelimit.Source]int {
	const steps, maxRows = 200, 20_000
	decided := map[ratelimit.Source]int{}
	synctest.Test(t, func(t *testing.T) {
		store := newEngine(t, &fakeDB{answer: grantUpTo(func(key string, n int64) int64 {
			if key == "used up" || refused && strings.HasPrefix(key, "new") {
				return 0
			}
			return n
		})}, engine.Options{CleanupProbability: -1})
		defer store.Close()
		h := hitOn("p", 30000, false)
		h.Limit.Lease = 0.05
		take := func(key string) ratelimit.Decision {
			h.Key = key
			return takeOne(t, store, h)
		}
		for step := range steps {
			for n := range newKeys / steps {
				take(fmt.Sprint("new", step, "/", n))
			}
			for _, key := range []string{"busy", "used up"} {
				d := take(key)
				check.Equal(t, key+" is allowed", d.Allowed, key == "busy")
				decided[d.Source]++
			}
			time.Sleep(50*time.Millisecond + 123) // at no time at which the store acts
		}
		// A row may have both a lease and a refusal.
		if n := store.Stats()[engine.RememberedRefusals]; n > maxRows*6/10 || refused && n < maxRows*4/10 {
			t.Errorf("%d refusals are remembered, want about %d at most", n, maxRows/2)
		}
	})
	return decided
}
