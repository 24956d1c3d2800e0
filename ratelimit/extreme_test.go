package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// extremes are the limits at the bounds of what is valid, for each algorithm.
func extremes(prefix func(string) string) (valid []*ratelimit.Limit, invalid int) {
	for a := ratelimit.SlidingWindow; a <= ratelimit.GCRA; a++ {
		for _, events := range []int64{1, 2, 1000, 1 << 52, ratelimit.MaxEvents - 1, ratelimit.MaxEvents} {
			for _, window := range []time.Duration{ratelimit.MinWindow, ratelimit.MinWindow + time.Microsecond, time.Second, ratelimit.MaxWindow} {
				for _, burst := range []int64{0, 1, 1000, ratelimit.MaxEvents} {
					l := &ratelimit.Limit{Prefix: prefix("p"), Algorithm: a, Events: events, Window: window, Burst: burst, Durable: events == 1}
					if l.Validate() == nil {
						valid = append(valid, l)
					} else {
						invalid++
					}
				}
			}
		}
	}
	for unit := ratelimit.Day; unit <= ratelimit.Year; unit++ {
		valid = append(valid, &ratelimit.Limit{Prefix: prefix("p"), Algorithm: ratelimit.FixedWindow, Calendar: unit, Events: ratelimit.MaxEvents})
	}
	return valid, invalid
}

// TestExtremes charges the full quota of extreme limits at once, and looks what
// happens at the moments that matter: in Go, in SQL, and by definition.
func TestExtremes(t *testing.T) {
	store, prefix := openSchedules(t)
	limits, invalid := extremes(prefix)
	if len(limits) < 100 || invalid < 100 {
		t.Fatalf("%d limits are valid, %d are not", len(limits), invalid)
	}
	for _, l := range limits {
		s := newSwitching(t)
		var log []entry
		ask := func(cost int64) ratelimit.Decision {
			d := s.ask(l, cost)
			if d.Allowed && cost != 0 {
				log = append(log, entry{s.c.now, max(cost, -ratelimit.MaxEvents)})
			}
			if err := agrees(l, log, s.c.now, ratelimit.Hit{Cost: cost}, d); err != nil {
				t.Fatalf("%+v, cost %d: %+v: %v", *l, cost, d, err)
			}
			return d
		}
		if d := ask(l.Capacity()); !d.Allowed || d.Remaining != 0 {
			t.Fatalf("%+v: the full quota at once: %+v", *l, d)
		}
		for _, cost := range []int64{1, l.Capacity(), l.Capacity() + 1, math.MaxInt64} {
			if d := ask(cost); d.Allowed || (d.RetryAfter == ratelimit.Never) != (cost > l.Capacity()) {
				t.Fatalf("%+v: cost %d of a quota that is used up: %+v", *l, cost, d)
			}
		}
		now := s.c.now
		for _, cost := range []int64{1, l.Capacity()} {
			s.c.now = now
			retry := now + ask(cost).RetryAfter.Microseconds()
			for _, at := range []int64{retry - 1, retry} {
				if at < latest {
					s.c.now = at
					ask(0)
				}
			}
		}
		ask(-1)
		ask(2)
		ask(math.MinInt64)
		if d := ask(0); d.Remaining != l.Capacity() {
			t.Fatalf("%+v: all is given back: %+v", *l, d)
		}
		ask(l.Capacity())
		s.run(store)
	}
}

// TestManyRequests decides 10,000 requests for one key in one batch, then for as
// many keys.
func TestManyRequests(t *testing.T) {
	s := newSite(t)
	store := s.store("", ratelimit.PostgresOptions{CleanupProbability: -1})
	for _, l := range hourly("") {
		var same, different []*ratelimit.Request
		for i := range 10000 {
			same = append(same, &ratelimit.Request{Hits: []ratelimit.Hit{{Limit: l, Key: "k", Cost: 1}}})
			different = append(different, &ratelimit.Request{Hits: []ratelimit.Hit{{Limit: l, Key: fmt.Sprint(i), Cost: 1}}})
		}
		store.RunBatch(same)
		store.RunBatch(different)
		for i := range same {
			if same[i].Err != nil || same[i].Decisions[0].Allowed != (i < 6) || same[i].Decisions[0].Remaining != int64(max(0, 5-i)) {
				t.Fatalf("%s: request %d for one key: %+v", l.Prefix, i, same[i])
			}
			if different[i].Err != nil || !different[i].Decisions[0].Allowed || different[i].Decisions[0].Remaining != 5 {
				t.Fatalf("%s: request %d for a key of its own: %+v", l.Prefix, i, different[i])
			}
		}
	}
}

// everyKey are keys that hold each byte, and each character of Unicode, once.
func everyKey() []string {
	var keys []string
	for b := range 256 {
		keys = append(keys, string([]byte{byte(b)}))
	}
	var text strings.Builder
	for r := rune(0); r <= 0x10ffff; r++ {
		if r >= 0xd800 && r < 0xe000 {
			// A surrogate is no character. In the way of UTF-8 it would be this.
			text.Write([]byte{0xed, byte(0x80 | r>>6&0x3f), byte(0x80 | r&0x3f)})
		} else {
			text.WriteRune(r)
		}
		if r%64 == 63 {
			keys = append(keys, text.String())
			text.Reset()
		}
	}
	return keys
}

// TestEveryKey: each of them has a row of its own, which is its text where
// Postgres can hold that.
func TestEveryKey(t *testing.T) {
	s := newSite(t)
	store := s.store("", ratelimit.PostgresOptions{CleanupProbability: -1})
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 1, Window: time.Hour}
	var hits []ratelimit.Hit
	stored := map[string]bool{}
	for _, key := range everyKey() {
		hits = append(hits, ratelimit.Hit{Limit: l, Key: key, Cost: 1})
		stored[ratelimit.StoredKey(key)] = true
	}
	if len(stored) != len(hits) {
		t.Fatalf("%d keys have %d texts", len(hits), len(stored))
	}
	for _, store := range []ratelimit.Store{store, ratelimit.NewMemory(0, nil)} {
		for round := range 2 {
			decisions := make([]ratelimit.Decision, len(hits))
			if err := store.Take(context.Background(), 60*time.Second, hits, decisions); err != nil {
				t.Fatal(err)
			}
			for i, d := range decisions {
				if d.Allowed != (round == 0) {
					t.Fatalf("key %d, %q, round %d: %+v", i, hits[i].Key, round, d)
				}
			}
		}
	}
	rows, err := s.conn.Query(context.Background(), "SELECT key FROM rate_limit_ephemeral")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	n := 0
	for ; rows.Next(); n++ {
		var key string
		if err := rows.Scan(&key); err != nil {
			t.Fatal(err)
		}
		if !stored[key] {
			t.Errorf("the table has the key %q", key)
		}
	}
	if n != len(hits) || rows.Err() != nil {
		t.Errorf("the table has %d rows, want %d: %v", n, len(hits), rows.Err())
	}
}

func TestStoredKey(t *testing.T) {
	for key, digested := range map[string]bool{
		"": false, "k": false, "ä": false, strings.Repeat("k", ratelimit.MaxKey): false, strings.Repeat("ä", ratelimit.MaxKey/2): false, "xsha256:": false,
		strings.Repeat("k", ratelimit.MaxKey+1): true, strings.Repeat("ä", ratelimit.MaxKey/2) + "k": true, "\x00": true, "a\x00": true, "\xff": true, "a\xc3": true,
		"sha256:": true, "sha256:abc": true, ratelimit.DigestKey("k"): true,
	} {
		got := ratelimit.StoredKey(key)
		if digested && got != ratelimit.DigestKey(key) || !digested && got != key {
			t.Errorf("%.20q is stored as %.20q", key, got)
		}
	}
	if got := ratelimit.DigestKey("abc"); got != "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" {
		t.Errorf("the digest of abc is %s", got)
	}
}

// TestNoHits: a request without any passes, and harms no other in its batch.
func TestNoHits(t *testing.T) {
	s := newSite(t)
	postgres := s.store("", ratelimit.PostgresOptions{})
	for _, store := range []ratelimit.Store{postgres, ratelimit.NewMemory(0, nil)} {
		if err := store.Take(context.Background(), 20*time.Second, nil, nil); err != nil {
			t.Errorf("Take: %v", err)
		}
		if err := store.Reset(context.Background(), 20*time.Second, nil); err != nil {
			t.Errorf("Reset: %v", err)
		}
	}
	requests := []*ratelimit.Request{{Hits: fakeHits("a")}, {}, {Reset: true}, {Hits: fakeHits("a", "b")}}
	postgres.RunBatch(requests)
	for i, r := range requests {
		if r.Err != nil || len(r.Decisions) != len(r.Hits) {
			t.Errorf("request %d: %+v", i, r)
		}
	}
}

// TestSameRowTwice: two hits of one request on one row are not allowed, but they
// are answered.
func TestSameRowTwice(t *testing.T) {
	s := newSite(t)
	for _, store := range []ratelimit.Store{s.store("", ratelimit.PostgresOptions{}), ratelimit.NewMemory(0, nil)} {
		for _, costs := range [][2]int64{{1, 1}, {1, 2}, {2, -1}, {7, 1}, {4, 4}} {
			l := hourly(fmt.Sprint(costs))[1]
			hits := []ratelimit.Hit{{Limit: l, Key: "k", Cost: costs[0]}, {Limit: l, Key: "k", Cost: costs[1]}}
			if err := store.Take(context.Background(), 20*time.Second, hits, make([]ratelimit.Decision, 2)); err != nil {
				t.Errorf("%v: %v", costs, err)
			}
		}
	}
}

// TestErrorsNameTheField, what it holds and what it should.
func TestErrorsNameTheField(t *testing.T) {
	good := ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Second}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		change func(l *ratelimit.Limit)
		want   string
	}{
		{func(l *ratelimit.Limit) { l.Prefix = "" }, "prefix: missing: must be a name of 1 to 255 bytes"},
		{func(l *ratelimit.Limit) { l.Prefix = strings.Repeat("p", 256) }, "prefix: "},
		{func(l *ratelimit.Limit) { l.Prefix = "a\x00b" }, `prefix: "a\x00b": must be`},
		{func(l *ratelimit.Limit) { l.Prefix = "\xff" }, `prefix: "\xff": must be`},
		{func(l *ratelimit.Limit) { l.Algorithm = 5 }, `algorithm: "Algorithm(5)": must be one of sliding_window, fixed_window, token_bucket, sliding_log, gcra`},
		{func(l *ratelimit.Limit) { l.Events = 0 }, `limit: "0": must be`},
		{func(l *ratelimit.Limit) { l.Events = -1 }, `limit: "-1": must be`},
		{func(l *ratelimit.Limit) { l.Events = ratelimit.MaxEvents + 1 }, `limit: "9007199254740993": must be`},
		{func(l *ratelimit.Limit) { l.Window = 0 }, `limit: "0s": must be`},
		{func(l *ratelimit.Limit) { l.Window = time.Millisecond - time.Microsecond }, `limit: "999µs": must be`},
		{func(l *ratelimit.Limit) { l.Window = ratelimit.MaxWindow + time.Microsecond }, `limit: "876600h0m0.000001s": must be`},
		{func(l *ratelimit.Limit) { l.Window += time.Nanosecond }, `limit: "1.000000001s": must be`},
		{func(l *ratelimit.Limit) { l.Burst = 2 }, "burst: "},
		{func(l *ratelimit.Limit) { l.Algorithm, l.Burst = ratelimit.TokenBucket, -1 }, `burst: "-1": must be`},
		{func(l *ratelimit.Limit) { l.Algorithm, l.Burst = ratelimit.TokenBucket, ratelimit.MaxEvents+1 }, `burst: "9007199254740993": must be`},
		{func(l *ratelimit.Limit) { l.Algorithm, l.Events = ratelimit.SlidingLog, 1001 }, `limit: "1001": must be`},
		{func(l *ratelimit.Limit) {
			l.Algorithm, l.Events, l.Window = ratelimit.GCRA, ratelimit.MaxEvents, time.Hour
		}, "limit: "},
		{func(l *ratelimit.Limit) { l.Algorithm, l.Burst, l.Window = ratelimit.GCRA, 2, ratelimit.MaxWindow }, "burst: "},
		{func(l *ratelimit.Limit) { l.Calendar, l.Window = ratelimit.Day, 0 }, "algorithm: "},
		{func(l *ratelimit.Limit) { l.Algorithm, l.Calendar = ratelimit.FixedWindow, ratelimit.Day }, `limit: "1s": must be`},
		{func(l *ratelimit.Limit) { l.Algorithm, l.Calendar, l.Window = ratelimit.FixedWindow, 5, 0 }, "limit: "},
		{func(l *ratelimit.Limit) { l.Zone = "UTC" }, `limit: "UTC": must be`},
		{func(l *ratelimit.Limit) {
			l.Algorithm, l.Calendar, l.Window, l.Zone = ratelimit.FixedWindow, ratelimit.Day, 0, "Mars/Base"
		}, `limit: "Mars/Base": must be`},
		{func(l *ratelimit.Limit) {
			l.Algorithm, l.Calendar, l.Window, l.Zone = ratelimit.FixedWindow, ratelimit.Day, 0, "Local"
		}, `limit: "Local": must be`},
	} {
		l := good
		test.change(&l)
		err := l.Validate()
		var field *ratelimit.FieldError
		if !errors.As(err, &field) || !strings.HasPrefix(err.Error(), test.want) || !strings.Contains(err.Error(), "must be") {
			t.Errorf("%+v: %v, want %s …", l, err, test.want)
		}
	}
}
