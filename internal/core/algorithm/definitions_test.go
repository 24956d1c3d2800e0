package algorithm_test

import (
	"fmt"
	"maps"
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// keys decides hits on rows in memory, at the time of its clock.
type keys struct {
	conformance.Clock
	rows map[string]*algorithm.Row

	// forget deletes expired and blank rows, as every store may.
	forget bool
}

func newKeys() *keys { return &keys{Clock: *conformance.NewClock(), rows: map[string]*algorithm.Row{}} }

// decide decides a request.
func (k *keys) decide(hits ...ratelimit.Hit) []ratelimit.Decision {
	if k.forget {
		maps.DeleteFunc(k.rows, func(_ string, r *algorithm.Row) bool {
			return r.Blank() || r.Expires <= k.Micro
		})
	}
	rows, nows := make([]*algorithm.Row, len(hits)), make([]int64, len(hits))
	for i, h := range hits {
		name := h.Limit.Prefix + "/" + h.Key
		if k.rows[name] == nil {
			k.rows[name] = &algorithm.Row{}
		}
		rows[i], nows[i] = k.rows[name], k.Micro
	}
	decisions := make([]ratelimit.Decision, len(hits))
	algorithm.Decide(hits, rows, nows, decisions)
	return decisions
}

// take decides a hit on the key "k".
func (k *keys) take(l *ratelimit.Limit, cost int64) ratelimit.Decision {
	return k.decide(ratelimit.Hit{Limit: l, Key: "k", Cost: cost})[0]
}

// peek peeks at a cost for the key "k".
func (k *keys) peek(l *ratelimit.Limit, cost int64) ratelimit.Decision {
	return k.decide(ratelimit.Hit{Limit: l, Key: "k", Cost: cost, Peek: true})[0]
}

// In random schedules, Allowed, Remaining, RetryAfter and Reset of each decision equal those of the oracle.
func TestDecisionsMatchOracle(t *testing.T) {
	conformance.EachDefinition(t, 2000, func(t *rapid.T, name string) {
		k := newKeys()
		k.Micro += rapid.Int64Range(0, 400*24*3600*conformance.Second).Draw(t, "begin")
		// If the row of a full bucket was deleted, its windows start with the next hit. A store may do so,
		// but the oracle's windows start with the first hit.
		k.forget = name != "token_bucket" && rapid.Bool().Draw(t, "forget")
		l := conformance.DrawLimit(t, name, "p")
		logs := map[string][]entry{}
		retry := time.Duration(0)
		for n := rapid.IntRange(1, 25).Draw(t, "steps"); n > 0; n-- {
			k.Micro += conformance.DrawAdvance(t, l, retry)
			if k.Micro > conformance.MaxTime {
				return
			}
			h := ratelimit.Hit{Limit: l, Key: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")}
			h.Cost = rapid.OneOf(rapid.Int64Range(1, 4), rapid.Int64Range(1, l.Capacity()),
				rapid.SampledFrom([]int64{l.Capacity(), l.Capacity() + 1, math.MaxInt64})).Draw(t, "cost")
			switch rapid.IntRange(0, 19).Draw(t, "what") {
			case 0: // a reset
				delete(k.rows, "p/"+h.Key)
				logs[h.Key] = nil
			case 1, 2:
				h.Cost = rapid.SampledFrom([]int64{-h.Cost, math.MinInt64}).Draw(t, "refund")
			case 3, 4:
				h.Peek = true
			}
			available := remaining(l, logs[h.Key], k.Micro)
			d := k.decide(h)[0]
			if want := h.Cost < 0 || available.Cmp(big.NewRat(h.Cost, 1)) >= 0; d.Allowed != want {
				t.Fatalf("%+v at %d, cost %d of %s: got allowed %t, want the opposite", *l, k.Micro, h.Cost,
					available.FloatString(6), d.Allowed)
			}
			if d.Allowed && !h.Peek {
				// A larger refund than of the largest quota changes nothing more.
				logs[h.Key] = append(logs[h.Key], entry{k.Micro, max(h.Cost, -ratelimit.MaxEvents)})
			}
			if err := checkDecision(l, logs[h.Key], k.Micro, h.Cost, d); err != nil {
				t.Fatalf("%+v at %d: decision %+v after %v: %v", *l, k.Micro, d, logs[h.Key], err)
			}
			retry = d.RetryAfter
			if retry == ratelimit.Never {
				retry = 0
			}
		}
	})
}

// checkDecision compares a decision with the oracle, except for Allowed.
func checkDecision(l *ratelimit.Limit, log []entry, now int64, cost int64, d ratelimit.Decision) error {
	fits := func(cost, at int64) bool { return remaining(l, log, at).Cmp(big.NewRat(cost, 1)) >= 0 }
	full := l.Capacity()
	if want := wholeRemaining(l, log, now); d.Remaining != want || d.Quota != full {
		return fmt.Errorf("Remaining of Limit: got %d of %d, want %d of %d", d.Remaining, d.Quota, want, full)
	}
	reset, retry := d.Reset.UnixMicro(), now+d.RetryAfter.Microseconds()
	want, isExact := resetTime(l, log, now)
	switch {
	case d.Allowed && retry != now:
		return fmt.Errorf("RetryAfter: got %v, want 0", d.RetryAfter)
	case d.Allowed && (reset < now || isExact && reset != want):
		return fmt.Errorf("Reset: got %d, want %d", reset, want)
	case d.Allowed && !isExact && !fits(full, reset) && reset < 1<<61: // beyond is never
		return fmt.Errorf("Reset: got %d, want a time with the full quota", reset)
	case d.Allowed && !isExact && fits(full, reset-1):
		return fmt.Errorf("Reset: got %d, want an earlier time with the full quota", reset)
	case d.Allowed:
	case cost > full:
		if d.RetryAfter != ratelimit.Never || !d.Reset.IsZero() {
			return fmt.Errorf("RetryAfter and Reset: got %v and %v, want Never and none", d.RetryAfter,
				d.Reset)
		}
	case reset != retry && !(d.RetryAfter == ratelimit.Never && d.Reset.IsZero()):
		return fmt.Errorf("Reset: got %d, want %d, the end of RetryAfter", reset, retry)
	case retry <= now || fits(cost, retry-1):
		return fmt.Errorf("RetryAfter: got %v, want less, because the hit passes before", d.RetryAfter)
	case !fits(cost, retry) && d.RetryAfter < math.MaxInt64: // a Duration holds 292 years
		return fmt.Errorf("RetryAfter: got %v, want more, because the hit does not pass then", d.RetryAfter)
	}
	return nil
}

// horizon is a hundred years in microseconds.
const horizon = int64(ratelimit.MaxWindow / time.Microsecond)

// drawState returns keys with a random state of the key "k", under l and other limits.
func drawState(t *rapid.T, l *ratelimit.Limit, others ...*ratelimit.Limit) *keys {
	k := newKeys()
	limits := append([]*ratelimit.Limit{l}, others...)
	retry := time.Duration(0)
	for n := rapid.IntRange(1, 8).Draw(t, "hits"); n > 0; n-- {
		by := rapid.SampledFrom(limits).Draw(t, "limit")
		k.Micro = min(k.Micro+conformance.DrawAdvance(t, by, retry), conformance.MaxTime)
		cost := conformance.DrawCost(t, by)
		if rapid.IntRange(0, 5).Draw(t, "refund") == 0 {
			cost = -cost
		}
		retry = k.take(by, cost).RetryAfter
	}
	return k
}
