package algorithm_test

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestASmallBucketAdmitsItsEvents in each hour: the burst at once, then one each 3.6 s.
func TestASmallBucketAdmitsItsEvents(t *testing.T) {
	k := newKeys()
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.TokenBucket, Events: 1000, Window: time.Hour, Burst: 20}
	begin := k.Micro
	for i := range 20 {
		if d := k.take(l, 1); !d.Allowed {
			t.Fatalf("hit %d of the burst: %+v", i, d)
		}
	}
	for i := range int64(1000) {
		if d := k.take(l, 1); d.Allowed || d.RetryAfter != 3600*time.Millisecond {
			t.Fatalf("after %d more: %+v", i, d)
		}
		k.Micro = begin + (i+1)*3_600_000 - 1
		if d := k.take(l, 1); d.Allowed || d.RetryAfter != time.Microsecond {
			t.Fatalf("a microsecond too early: %+v", d)
		}
		k.Micro++
		if d := k.take(l, 1); !d.Allowed || d.Remaining != 0 {
			t.Fatalf("hit %d, each 3.6 s: %+v", i, d)
		}
	}
	if k.Micro != begin+3600*conformance.Second {
		t.Error("1,000 hits did not take an hour")
	}
}

// TestASmallBucketLosesNoPartOfAToken: 7 a minute is no whole number of microseconds, and a
// client that asks all the time gets 7 each minute, for a day.
func TestASmallBucketLosesNoPartOfAToken(t *testing.T) {
	k := newKeys()
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.TokenBucket, Events: 7, Window: time.Minute, Burst: 3}
	passed, begin := int64(0), k.Micro
	for k.Micro <= begin+24*3600*conformance.Second {
		d := k.take(l, 1)
		if d.Allowed {
			passed++
			continue
		}
		k.Micro += d.RetryAfter.Microseconds()
	}
	if want := int64(3 + 7*24*60); passed != want {
		t.Errorf("%d passed in a day, want %d", passed, want)
	}
}

// TestASmallBucketFollowsItsSteps holds the bucket to the usual steps of a token bucket, in exact
// arithmetic: at each request tokens = min(capacity, tokens + time passed · rate), and the
// request passes if there are as many tokens as it costs.
func TestASmallBucketFollowsItsSteps(t *testing.T) {
	conformance.Check(t, 1000, func(t *rapid.T) {
		k := newKeys()
		l := conformance.DrawLimit(t, "even_bucket", "p")
		full := new(big.Rat).SetInt64(l.Capacity())
		tokens, last := new(big.Rat).Set(full), k.Micro
		retry := time.Duration(0)
		for n := rapid.IntRange(1, 40).Draw(t, "hits"); n > 0; n-- {
			k.Micro = min(k.Micro+conformance.DrawAdvance(t, l, retry), latest)
			cost := conformance.DrawCost(t, l)
			gained := new(big.Rat).Mul(big.NewRat(k.Micro-last, l.Window.Microseconds()), new(big.Rat).SetInt64(l.Events))
			if last = k.Micro; tokens.Add(tokens, gained).Cmp(full) > 0 {
				tokens.Set(full)
			}
			price := new(big.Rat).SetInt64(cost)
			d := k.take(l, cost)
			if want := tokens.Cmp(price) >= 0; d.Allowed != want {
				t.Fatalf("%+v, cost %d of %s tokens: %+v", *l, cost, tokens.FloatString(6), d)
			}
			if d.Allowed {
				tokens.Sub(tokens, price)
			}
			retry = d.RetryAfter
		}
	})
}

// TestALargeBucketIsFilledByWindows: a bucket of 20 that gains 5 each 10 seconds.
func TestALargeBucketIsFilledByWindows(t *testing.T) {
	k := newKeys()
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.TokenBucket, Events: 5, Window: 10 * time.Second, Burst: 20}
	begin := k.Micro
	for _, step := range []struct{ at, cost, left int64 }{{0, 5, 15}, {10, 0, 20}, {15, 18, 2}, {20, 0, 7}} {
		k.Micro = begin + step.at*conformance.Second
		d := k.peek(l, 1)
		if step.cost > 0 {
			d = k.take(l, step.cost)
		}
		if !d.Allowed || d.Remaining != step.left {
			t.Errorf("after %d s: %+v, want %d left", step.at, d, step.left)
		}
	}
}

// TestAnOverrideKeepsTheTokens: more or fewer events, or another burst, change how tokens come,
// not those that are there.
func TestAnOverrideKeepsTheTokens(t *testing.T) {
	k := newKeys()
	limit := func(events, burst int64) *ratelimit.Limit {
		return &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.TokenBucket, Events: events, Window: time.Hour, Burst: burst}
	}
	k.take(limit(1000, 20), 20)
	for _, want := range []struct {
		l     *ratelimit.Limit
		retry time.Duration
	}{{limit(1000, 20), 3600 * time.Millisecond}, {limit(5000, 20), 720 * time.Millisecond}, {limit(1000, 2000), time.Hour}, {limit(10, 20), time.Hour}, {limit(1000, 20), 3600 * time.Millisecond}} {
		if d := k.take(want.l, 1); d.Allowed || d.Remaining != 0 || d.RetryAfter != want.retry {
			t.Errorf("%d events, burst %d: %+v, want %v", want.l.Events, want.l.Burst, d, want.retry)
		}
	}
}
