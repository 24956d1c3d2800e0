package ratelimit_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestRetryAfterAndReset brings a row into a random state, and then, in SQL and
// in Go: a refused cost is refused one microsecond before its RetryAfter has
// passed, and admitted when it has. The full quota is not there one microsecond
// before Reset, and is at it.
func TestRetryAfterAndReset(t *testing.T) {
	store, prefix := openSchedules(t)
	eachWay(t, 400, func(t *rapid.T, way string) {
		c := &clock{now: 1_700_000_000 * second}
		memory := ratelimit.NewMemory(0, c.read)
		memory.KeepExpired()
		l := drawOfWay(t, way, prefix("p"))
		l.Durable = rapid.Bool().Draw(t, "durable")
		var batches []ratelimit.Batch
		var wants [][]ratelimit.Decision
		ask := func(h ratelimit.Hit) ratelimit.Decision {
			h.Limit = l
			r := &ratelimit.Request{Hits: []ratelimit.Hit{h}}
			batches = append(batches, ratelimit.Batch{Now: c.now, Requests: []*ratelimit.Request{r}})
			wants = append(wants, sequentially(t, memory, r))
			return wants[len(wants)-1][0]
		}
		cost := func() int64 {
			return rapid.OneOf(rapid.Int64Range(1, 4), rapid.Int64Range(1, l.Capacity()), rapid.Just(l.Capacity())).Draw(t, "cost") % (l.Capacity() + 1)
		}
		retry := time.Duration(0)
		for n := rapid.IntRange(1, 8).Draw(t, "hits"); n > 0; n-- {
			c.now += drawAdvance(t, l, retry)
			retry = ask(ratelimit.Hit{Cost: cost()}).RetryAfter
		}
		if rapid.Bool().Draw(t, "set back") {
			c.now -= rapid.Int64Range(0, 5*second).Draw(t, "by")
		}
		refused := ratelimit.Hit{Cost: 1 + cost()%l.Capacity()}
		d := ask(refused)
		if c.now > latest || d.RetryAfter.Microseconds() > 2*horizon || d.Reset.UnixMicro() > latest+horizon {
			t.Skip() // a test's clock in SQL is exact for so long
		}
		full := ratelimit.Hit{Cost: l.Capacity()}
		now := c.now
		for _, probe := range []struct {
			at   int64
			hit  ratelimit.Hit
			want bool
			due  bool
		}{
			{now + d.RetryAfter.Microseconds() - 1, refused, false, !d.Allowed},
			{now + d.RetryAfter.Microseconds(), refused, true, !d.Allowed},
			{d.Reset.UnixMicro() - 1, full, false, d.Reset.UnixMicro() > now && d.Allowed},
			{d.Reset.UnixMicro(), full, true, d.Allowed},
		} {
			if !probe.due {
				continue
			}
			c.now = probe.at
			peeked := ask(ratelimit.Hit{Cost: probe.hit.Cost, Peek: true})
			if taken := ask(probe.hit); taken.Allowed != probe.want || peeked.Allowed != probe.want {
				t.Fatalf("%+v after %+v: at %+d, cost %d: %+v, take %+v, want %v", *l, d, c.now-now, probe.hit.Cost, peeked, taken, probe.want)
			}
			if probe.hit == full && !probe.want && peeked.Remaining >= l.Capacity() {
				t.Fatalf("%+v after %+v: at %+d %d remain", *l, d, c.now-now, peeked.Remaining)
			}
		}
		store.RunSchedule(batches, func(int) []*ratelimit.Statement { return nil })
		for i, b := range batches {
			compare(t, "SQL", b.Now, b.Requests[0], wants[i])
		}
	})
}

// TestRetryAfterOfSeveral asks with requests of several limits: none of them
// passes before the longest RetryAfter among its refusals is over, and then the
// request does.
func TestRetryAfterOfSeveral(t *testing.T) {
	c := &clock{}
	n := 0
	check(t, 1500, func(t *rapid.T) {
		c.now = 1_700_000_000 * second
		store := ratelimit.NewMemory(0, c.read)
		store.KeepExpired()
		n++
		limits := drawLimits(t, func(string) string { n++; return string(rune('a' + n%26)) })
		for i := range limits {
			limits[i].Prefix += string(rune('a' + i))
		}
		for hits := rapid.IntRange(1, 10).Draw(t, "hits"); hits > 0; hits-- {
			c.now += rapid.Int64Range(0, second/1000).Draw(t, "advance")
			sequentially(t, store, drawSeveral(t, limits, false))
		}
		r := drawSeveral(t, limits, false)
		decisions := sequentially(t, store, r)
		longest := time.Duration(0)
		for _, d := range decisions {
			if d.RetryAfter == ratelimit.Never {
				t.Skip()
			}
			if !d.Allowed && d.RetryAfter > longest {
				longest = d.RetryAfter
			}
		}
		if longest == 0 || longest == math.MaxInt64 {
			t.Skip() // passed, or it takes longer than a Duration can say
		}
		now := c.now
		for _, probe := range []struct {
			at   int64
			want bool
		}{{now + longest.Microseconds() - 1, false}, {now + longest.Microseconds(), true}} {
			c.now = probe.at
			decisions := make([]ratelimit.Decision, len(r.Hits))
			if err := store.Take(context.Background(), time.Second, r.Hits, decisions); err != nil {
				t.Fatal(err)
			}
			passed := true
			for _, d := range decisions {
				passed = passed && d.Allowed
			}
			if passed != probe.want {
				t.Fatalf("%v later: %+v, want %v", time.Duration(c.now-now)*time.Microsecond, decisions, probe.want)
			}
		}
	})
}

// TestRetryAfterOfAStatementThatLost: the time is that of the run which counts,
// also where the one before had sent its rows and lost at its commit.
func TestRetryAfterOfAStatementThatLost(t *testing.T) {
	runs := int64(0)
	db := &fakeDB{}
	db.answer = func(_ context.Context, statements []*ratelimit.Statement) error {
		s := statements[0]
		s.Err, s.Code = nil, ""
		row := grantedRow(1, 0, 5)
		row[2] = int8(800_000_000*second + runs*1800*second)
		if runs++; runs == 1 {
			s.Err, s.Code = errors.New("could not serialize access"), "40001"
		}
		return s.Row(row)
	}
	store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1})
	defer store.Close()
	if d := takeOne(t, store, fakeHits("k")[0]); d.Allowed || d.RetryAfter != 30*time.Minute || runs != 2 {
		t.Errorf("%+v after %d runs, want a RetryAfter of 30m", d, runs)
	}
}
