package ratelimit_test

import (
	"fmt"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// loosely is how much a limit lets pass in so many microseconds wherever its
// windows begin: after a change they begin where the row's did.
func loosely(l *ratelimit.Limit, time int64) *big.Int {
	window := l.Window.Microseconds()
	switch {
	case l.Calendar != ratelimit.NoCalendar:
		window = 23 * 3600 * second // no unit of the calendar is shorter
	case l.Algorithm == ratelimit.SlidingLog || l.Algorithm == ratelimit.TokenBucket || l.Algorithm == ratelimit.GCRA:
		return most(l, time)
	}
	windows := 1 + (time+window-1)/window
	return new(big.Int).Mul(big.NewInt(windows), big.NewInt(l.Events))
}

// switching is a key whose limit changes, in Go at once and in SQL when run.
type switching struct {
	t       failer
	c       *clock
	memory  *ratelimit.Memory
	batches []ratelimit.Batch
	wants   [][]ratelimit.Decision
}

func newSwitching(t failer) *switching {
	s := &switching{t: t, c: &clock{now: 1_700_000_000 * second}}
	s.memory = ratelimit.NewMemory(0, s.c.read)
	s.memory.KeepExpired()
	return s
}

func (s *switching) ask(l *ratelimit.Limit, cost int64) ratelimit.Decision {
	r := &ratelimit.Request{Hits: []ratelimit.Hit{{Limit: l, Key: "k", Cost: cost}}}
	s.batches = append(s.batches, ratelimit.Batch{Now: s.c.now, Requests: []*ratelimit.Request{r}})
	s.wants = append(s.wants, sequentially(s.t, s.memory, r))
	return s.wants[len(s.wants)-1][0]
}

func (s *switching) run(store *ratelimit.Postgres) {
	store.RunSchedule(s.batches, func(int) []*ratelimit.Statement { return nil })
	for i, b := range s.batches {
		compare(s.t, fmt.Sprintf("step %d", i), b.Now, b.Requests[0], s.wants[i])
	}
}

// phase sends random hits under a limit, and checks that they keep to it.
func (s *switching) phase(t *rapid.T, l *ratelimit.Limit) {
	var log []entry
	retry := time.Duration(0)
	for n := rapid.IntRange(1, 8).Draw(t, "hits"); n > 0; n-- {
		s.c.now = min(s.c.now+drawAdvance(t, l, retry), latest)
		cost := rapid.OneOf(rapid.Int64Range(1, 4), rapid.Int64Range(1, l.Capacity())).Draw(t, "cost")
		d := s.ask(l, cost)
		if d.Remaining > l.Capacity() || d.Limit != l.Capacity() {
			t.Fatalf("%+v: %+v", *l, d)
		}
		if d.Allowed {
			log = append(log, entry{s.c.now, cost})
		}
		retry = d.RetryAfter
	}
	for i := range log {
		for j := i; j < len(log); j++ {
			if passed := passed(log[i : j+1]); passed.Cmp(loosely(l, log[j].at-log[i].at)) > 0 {
				t.Fatalf("%+v: %v passed from %d to %d of %v", *l, passed, i, j, log)
			}
		}
	}
}

// TestSwitch changes a prefix from one limit to another and back, for each pair
// of algorithms: each phase keeps to its own limit, so all pass at most the sum,
// and SQL and Go agree on all of it.
func TestSwitch(t *testing.T) {
	store, prefix := openSchedules(t)
	for _, from := range ways {
		for _, to := range ways {
			t.Run(from+"/"+to, func(t *testing.T) {
				check(t, 60, func(t *rapid.T) {
					s := newSwitching(t)
					a, b := drawOfWay(t, from, prefix("p")), drawOfWay(t, to, "q")
					b.Prefix = a.Prefix
					for phase := rapid.IntRange(2, 4).Draw(t, "phases"); phase > 0; phase-- {
						s.phase(t, a)
						a, b = b, a
					}
					s.run(store)
				})
			})
		}
	}
}

// TestSwitchGoesOnCounting spends part of a quota at one moment and switches to
// an algorithm that shares the state: what is spent stays spent.
func TestSwitchGoesOnCounting(t *testing.T) {
	store, prefix := openSchedules(t)
	for _, family := range [][]string{{"fixed_window", "sliding_window", "calendar"}, {"token_bucket", "gcra"}, {"sliding_log"}} {
		for _, from := range family {
			for _, to := range family {
				t.Run(from+"/"+to, func(t *testing.T) {
					check(t, 150, func(t *rapid.T) {
						s := newSwitching(t)
						a, b := drawOfWay(t, from, prefix("p")), drawOfWay(t, to, "q")
						b.Prefix = a.Prefix
						if from == "calendar" {
							// The row's window began with the calendar's.
							b.Window, b.Calendar, b.Zone = 400*24*time.Hour, ratelimit.NoCalendar, ""
							if to == "calendar" {
								b.Window, b.Calendar, b.Zone = 0, a.Calendar, a.Zone
							}
						}
						if from == "token_bucket" || from == "gcra" {
							// They hold what is left, and what is to drain.
							b.Events, b.Window, b.Burst = a.Events, a.Window, a.Burst
							if b.Validate() != nil {
								t.Skip()
							}
						}
						spent := int64(0)
						for n := rapid.IntRange(1, 4).Draw(t, "hits"); n > 0; n-- {
							cost := rapid.OneOf(rapid.Int64Range(1, 4), rapid.Int64Range(1, a.Capacity())).Draw(t, "cost")
							if s.ask(a, cost).Allowed {
								spent += cost
							}
						}
						want := atLeast(0, b.Capacity()-spent)
						inexact := int64(0)
						if from == "gcra" && to == "token_bucket" {
							inexact = b.Events / b.Window.Microseconds() // what comes in within a microsecond
						}
						d := s.ask(b, b.Capacity())
						if left := d.Remaining; d.Allowed && spent > inexact || !d.Allowed && (left < want || left > want+inexact) {
							t.Fatalf("%d of %+v spent, then %+v: %+v, want %d left", spent, *a, *b, d, want)
						}
						s.run(store)
					})
				})
			}
		}
	}
}

// TestSwitchGivesAwayAWindow: token_bucket gets its Events at the end of each
// window and gcra bit by bit, so a switch may give away those of one window.
func TestSwitchGivesAwayAWindow(t *testing.T) {
	check(t, 1000, func(t *rapid.T) {
		s := newSwitching(t)
		a := drawOfWay(t, "gcra", "p")
		b := *a
		b.Algorithm = ratelimit.TokenBucket
		for n := rapid.IntRange(1, 6).Draw(t, "hits"); n > 0; n-- {
			s.c.now = min(s.c.now+drawAdvance(t, a, 0), latest)
			s.ask(&b, rapid.OneOf(rapid.Int64Range(1, 4), rapid.Int64Range(1, a.Capacity())).Draw(t, "cost"))
		}
		before, after := s.ask(&b, 0).Remaining, s.ask(a, 0).Remaining
		if after < before || after-before > a.Events {
			t.Fatalf("%+v: %d were left in the bucket, and %d after the switch to gcra", *a, before, after)
		}
	})
}

// TestChangedEvents changes only how many events an algorithm admits: what was
// charged before counts as if the new limit had always been.
func TestChangedEvents(t *testing.T) {
	store, prefix := openSchedules(t)
	eachWay(t, 150, func(t *rapid.T, way string) {
		s := newSwitching(t)
		l := drawOfWay(t, way, prefix("p"))
		var log []entry
		held := int64(0)
		for phase := rapid.IntRange(2, 4).Draw(t, "phases"); phase > 0; phase-- {
			for n := rapid.IntRange(1, 6).Draw(t, "hits"); n > 0; n-- {
				s.c.now = min(s.c.now+drawAdvance(t, l, 0), latest)
				cost := rapid.OneOf(rapid.Int64Range(1, 4), rapid.Int64Range(1, l.Capacity())).Draw(t, "cost")
				want := free(l, log, s.c.now).Cmp(big.NewRat(cost, 1)) >= 0
				d := s.ask(l, cost)
				if d.Allowed {
					log, held = append(log, entry{s.c.now, cost}), d.Remaining
				}
				if way == "token_bucket" {
					continue // it holds what is left, not what was charged
				}
				if d.Allowed != want {
					t.Fatalf("%+v, cost %d: %+v, want %v after %v", *l, cost, d, want, log)
				}
				if err := agrees(l, log, s.c.now, ratelimit.Hit{Cost: cost}, d); err != nil {
					t.Fatalf("%+v, cost %d: %+v: %v after %v", *l, cost, d, err, log)
				}
			}
			changed := *l
			quota := rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(1, 2*l.Capacity())).Draw(t, "quota")
			if way == "token_bucket" || way == "gcra" {
				changed.Burst = quota
			} else {
				changed.Events = quota
			}
			if changed.Validate() != nil {
				continue
			}
			l = &changed
			after := s.ask(l, 0).Remaining
			if charged := len(log) > 0 && log[len(log)-1].at == s.c.now; way == "token_bucket" && charged && after != min(held, quota) || after > quota {
				t.Fatalf("%d were left, and %d of a quota of %d", held, after, quota)
			}
		}
		s.run(store)
	})
}
