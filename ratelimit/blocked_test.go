package ratelimit_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// hourly are limits of 6 in an hour, or on the calendar a year: for each way to
// count one.
func hourly(prefix string) []*ratelimit.Limit {
	var limits []*ratelimit.Limit
	for a := ratelimit.SlidingWindow; a <= ratelimit.GCRA; a++ {
		limits = append(limits, &ratelimit.Limit{Prefix: prefix + a.String(), Algorithm: a, Events: 6, Window: time.Hour})
	}
	return append(limits, &ratelimit.Limit{Prefix: prefix + "calendar", Algorithm: ratelimit.FixedWindow, Events: 6, Calendar: ratelimit.Year})
}

// asked decides a hit and reports whether the database was asked.
func asked(t *testing.T, store *ratelimit.Postgres, h ratelimit.Hit) (ratelimit.Decision, bool) {
	t.Helper()
	before := store.Stats()
	d := takeOne(t, store, h)
	after := store.Stats()
	sent := after.Statements > before.Statements
	if d.Source == ratelimit.FromBlocked && (sent || after.Blocked != before.Blocked+1) || d.Source == ratelimit.FromPostgres && !sent {
		t.Fatalf("%+v, and the counts went from %+v to %+v", d, before, after)
	}
	return d, sent
}

// TestBlocked: once a cost was refused, it and those above it are refused without
// a statement, with the RetryAfter that the database would give; what is below is
// asked about.
func TestBlocked(t *testing.T) {
	s := newSite(t)
	for _, l := range hourly("") {
		store := s.store("", ratelimit.PostgresOptions{CleanupProbability: -1})
		hit := func(cost int64) ratelimit.Hit { return ratelimit.Hit{Limit: l, Key: "k", Cost: cost} }
		if d, _ := asked(t, store, hit(3)); !d.Allowed {
			t.Fatal(d)
		}
		early := time.Now()
		first, sent := asked(t, store, hit(5))
		if first.Allowed || !sent {
			t.Fatalf("%s: %+v", l.Prefix, first)
		}
		late := time.Now()
		for _, cost := range []int64{5, 6, 5} {
			before := time.Now()
			d, sent := asked(t, store, hit(cost))
			after := time.Now()
			if sent || d.Allowed || d.Remaining != 3 || d.Limit != 6 {
				t.Errorf("%s, cost %d: asked %v, %+v", l.Prefix, cost, sent, d)
			}
			if !d.Reset.Equal(first.Reset) {
				t.Errorf("%s, cost %d: Reset is %v, and was %v", l.Prefix, cost, d.Reset, first.Reset)
			}
			least, most := first.RetryAfter-after.Sub(early)-time.Microsecond, first.RetryAfter-before.Sub(late)+time.Microsecond
			if cost == 5 && (d.RetryAfter < least || d.RetryAfter > most) {
				t.Errorf("%s: blocked for %v, the database would say from %v to %v", l.Prefix, d.RetryAfter, least, most)
			}
			if cost == 6 && d.RetryAfter < least {
				t.Errorf("%s: cost 6 is blocked for %v, less than cost 5", l.Prefix, d.RetryAfter)
			}
		}
		if d, sent := asked(t, store, hit(7)); d.RetryAfter != ratelimit.Never || d.Allowed {
			t.Errorf("%s, cost 7 of 6: asked %v, %+v", l.Prefix, sent, d)
		}
		for _, h := range []ratelimit.Hit{hit(0), {Limit: l, Key: "k", Cost: 5, Peek: true}} {
			if d, sent := asked(t, store, h); !sent || d.Remaining != 3 {
				t.Errorf("%s: a look is not asked about: %+v", l.Prefix, d)
			}
		}
		if d, sent := asked(t, store, hit(1)); !d.Allowed || !sent || d.Remaining != 2 {
			t.Errorf("%s: a denied cost of 5 blocks one of 1: %+v", l.Prefix, d)
		}
		// Another limit on the row is another question.
		raised := *l
		raised.Events = 100
		if d, sent := asked(t, store, ratelimit.Hit{Limit: &raised, Key: "k", Cost: 5}); !sent || d.Limit != 100 {
			t.Errorf("%s: a raised limit is blocked: %+v", l.Prefix, d)
		}
		if stats := store.Stats(); stats.Blocked != 4 && stats.Blocked != 3 || stats.BlockedKeys != 1 {
			t.Errorf("%s: %+v", l.Prefix, stats)
		}
	}
}

// TestBlockedSendsNothing hammers a row that is used up, and one that is not.
func TestBlockedSendsNothing(t *testing.T) {
	s := newSite(t)
	for _, test := range []struct {
		max  int
		most int64
	}{{0, 3}, {ratelimit.WithoutBlocked, 1001}} {
		store := s.store("", ratelimit.PostgresOptions{CleanupProbability: -1, MaxBlockedKeys: test.max})
		l := &ratelimit.Limit{Prefix: fmt.Sprint("p", test.max), Algorithm: ratelimit.FixedWindow, Events: 1, Window: time.Hour}
		started := time.Now()
		for i := range 1001 {
			if d := takeOne(t, store, ratelimit.Hit{Limit: l, Key: "k", Cost: 1}); d.Allowed != (i == 0) {
				t.Fatalf("hit %d: %+v", i, d)
			}
		}
		// Once a second it may be asked whether it still is so.
		most := test.most + int64(time.Since(started)/time.Second)
		if stats := store.Stats(); stats.Statements > most || stats.Statements+stats.Blocked != 1001 || test.max < 0 && stats.BlockedKeys != 0 {
			t.Errorf("MaxBlockedKeys %d: %+v, want at most %d statements", test.max, stats, most)
		}
	}
}

// TestBlockedIsCleared by what gives quota back here, and noticed within a second
// where it was given back elsewhere.
func TestBlockedIsCleared(t *testing.T) {
	s := newSite(t)
	store, other := s.store("", ratelimit.PostgresOptions{}), s.store("", ratelimit.PostgresOptions{})
	for _, l := range hourly("") {
		h := ratelimit.Hit{Limit: l, Key: "k", Cost: 6}
		back := ratelimit.Hit{Limit: l, Key: "k", Cost: -6}
		block := func() {
			t.Helper()
			takeOne(t, store, h)
			takeOne(t, store, h)
			if d, sent := asked(t, store, h); sent || d.Allowed {
				t.Fatalf("%s: not blocked: asked %v, %+v", l.Prefix, sent, d)
			}
		}
		block()
		if err := store.Reset(context.Background(), 10*time.Second, []ratelimit.Hit{h}); err != nil {
			t.Fatal(err)
		}
		if d := takeOne(t, store, h); !d.Allowed {
			t.Errorf("%s: after Reset: %+v", l.Prefix, d)
		}
		block()
		takeOne(t, store, back)
		if d := takeOne(t, store, h); !d.Allowed {
			t.Errorf("%s: after a refund: %+v", l.Prefix, d)
		}
	}
	// Elsewhere; all at once, since it takes a second.
	var hits []ratelimit.Hit
	for _, l := range hourly("elsewhere") {
		hits = append(hits, ratelimit.Hit{Limit: l, Key: "k", Cost: 6})
	}
	for _, h := range append(hits, hits...) {
		takeOne(t, store, h)
	}
	blocked := time.Now()
	if err := other.Reset(context.Background(), 10*time.Second, hits); err != nil {
		t.Fatal(err)
	}
	for _, h := range hits {
		if d := takeOne(t, store, h); d.Allowed && time.Since(blocked) < 500*time.Millisecond {
			t.Errorf("%s: was not blocked at all: %+v", h.Limit.Prefix, d)
		}
	}
	time.Sleep(time.Until(blocked.Add(time.Second + 10*time.Millisecond)))
	for _, h := range hits {
		if d := takeOne(t, store, h); !d.Allowed && d.Source == ratelimit.FromBlocked {
			t.Errorf("%s: is blocked after a second: %+v", h.Limit.Prefix, d)
		}
	}
}

// TestBlockedEndsInTime: a row is asked about again as soon as the cost may pass,
// a smaller one before a larger.
func TestBlockedEndsInTime(t *testing.T) {
	s := newSite(t)
	store := s.store("", ratelimit.PostgresOptions{CleanupProbability: -1})
	for a := ratelimit.SlidingWindow; a <= ratelimit.GCRA; a++ {
		l := &ratelimit.Limit{Prefix: a.String(), Algorithm: a, Events: 4, Window: 100 * time.Millisecond}
		h := ratelimit.Hit{Limit: l, Key: "k", Cost: 4}
		takeOne(t, store, h)
		for round := range 3 {
			h.Cost = []int64{4, 1, 2}[round]
			var last ratelimit.Decision
			for {
				d := takeOne(t, store, h)
				if d.Allowed {
					break
				}
				last = d
				time.Sleep(d.RetryAfter)
				if d := takeOne(t, store, h); d.Source == ratelimit.FromBlocked {
					t.Errorf("%s, cost %d: blocked when its RetryAfter of %v was over: %+v", a, h.Cost, last.RetryAfter, d)
				} else if d.Allowed {
					break
				}
			}
		}
	}
}

// TestBlockedIsBounded in the number of rows; the latest is always among them.
func TestBlockedIsBounded(t *testing.T) {
	for _, most := range []int{1, 3, 16, 17, 50} {
		db := &fakeDB{answer: rows(grantedRow(1, 0, 5))}
		store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1, MaxBlockedKeys: most})
		for i := range 200 {
			h := fakeHits(fmt.Sprint(i))[0]
			if d := takeOne(t, store, h); d.Allowed || d.Source != ratelimit.FromPostgres {
				t.Fatal(d)
			}
			if d := takeOne(t, store, h); d.Allowed || d.Source != ratelimit.FromBlocked {
				t.Fatal(d)
			}
			if keys := store.Stats().BlockedKeys; keys > int64(most) || keys < int64(min(i+1, most)) {
				t.Fatalf("after %d refused keys, %d are blocked; want at most %d, and as many as that allows", i+1, keys, most)
			}
		}
		store.Close()
	}
}

// TestBlockedOfSeveral: one blocked row refuses the request, and the other limits
// are not asked about.
func TestBlockedOfSeveral(t *testing.T) {
	s := newSite(t)
	store := s.store("", ratelimit.PostgresOptions{CleanupProbability: -1})
	open := &ratelimit.Limit{Prefix: "open", Algorithm: ratelimit.TokenBucket, Events: 5, Burst: 9, Window: time.Hour}
	closed := &ratelimit.Limit{Prefix: "closed", Events: 1, Window: time.Hour}
	hits := []ratelimit.Hit{{Limit: open, Key: "k", Cost: 2}, {Limit: closed, Key: "k", Cost: 1}, {Limit: open, Key: "l", Cost: 0}}
	d := make([]ratelimit.Decision, 3)
	for round := range 3 {
		if round == 2 { // the statement that gives back must not come in between
			eventually(t, "the charge of the refused request to be given back", func() bool { return store.Stats().GivenBack == 1 })
		}
		before := store.Stats()
		if err := store.Take(context.Background(), 10*time.Second, hits, d); err != nil {
			t.Fatal(err)
		}
		if allowed := d[0].Allowed && d[1].Allowed && d[2].Allowed; allowed != (round == 0) {
			t.Fatalf("round %d: %+v", round, d)
		}
		if round == 2 {
			want := ratelimit.Decision{Allowed: true, Limit: 9, Source: ratelimit.Undecided}
			if d[0] != want || d[2] != want || d[1].Source != ratelimit.FromBlocked || store.Stats().Statements != before.Statements {
				t.Errorf("a request of which one row is blocked: %+v", d)
			}
		}
	}
	if left := takeOne(t, store, ratelimit.Hit{Limit: open, Key: "k"}).Remaining; left != 7 {
		t.Errorf("%d remain of the limit that was not blocked, want 7", left)
	}
}

// TestGivingBackUnblocks: a row that was used up for a moment, by a request that
// another limit refused, is not blocked once that is given back.
func TestGivingBackUnblocks(t *testing.T) {
	noted := make(chan struct{})
	db := &fakeDB{}
	db.answer = func(ctx context.Context, statements []*ratelimit.Statement) error {
		if strings.Contains(statements[0].SQL, "UPDATE rate_limit_ephemeral") {
			<-noted // of the other flight
			return honest(ctx, statements)
		}
		if len(statements[0].Args[2].([]string)) == 2 { // the first is granted its last, the second not
			return rows(grantedRow(1, 1, 5), grantedRow(2, 0, 5))(ctx, statements)
		}
		return rows(grantedRow(1, 0, 5))(ctx, statements)
	}
	store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{CleanupProbability: -1})
	defer store.Close()
	if err := store.Take(context.Background(), 10*time.Second, fakeHits("a", "b"), make([]ratelimit.Decision, 2)); err != nil {
		t.Fatal(err)
	}
	// With another timeout it is in another queue.
	if d, _, err := tryOne(store, 11*time.Second, fakeHits("a")[0]); err != nil || d.Allowed {
		t.Fatal(d, err)
	}
	if d, _, _ := tryOne(store, 11*time.Second, fakeHits("a")[0]); d.Source != ratelimit.FromBlocked {
		t.Fatalf("not blocked: %+v", d)
	}
	close(noted)
	eventually(t, "the row not to be blocked", func() bool { return store.Stats().GivenBack == 1 && store.Stats().BlockedKeys == 1 })
	if d, _, _ := tryOne(store, 11*time.Second, fakeHits("a")[0]); d.Source != ratelimit.FromPostgres {
		t.Errorf("%+v", d)
	}
}
