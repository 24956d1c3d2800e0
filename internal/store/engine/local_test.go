package engine_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// localStore is a store of one of several proxies that decides by itself while its database is lost.
func (s *site) localStore(proxies int64, driver string) (*localStore, *lostDB) {
	db := &lostDB{DB: drivers.All[driver](s.t, s.dsn)}
	l := &localStore{proxies: proxies}
	l.Store = s.proxy(db, engine.Options{}, registry.Node{Name: "n", Epoch: 7, Notice: l.notice})
	l.Store.UseLocal()
	l.Prepare()
	return l, db
}

type localStore struct {
	*store.Store
	proxies int64

	mu      sync.Mutex
	notices []string
}

func (l *localStore) notice(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notices = append(l.notices, text)
}

func (l *localStore) said(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(strings.Join(l.notices, "\n"), text)
}

// decide takes hits, by itself if the database does not answer.
func (l *localStore) decide(t testing.TB, hits ...ratelimit.Hit) []ratelimit.Decision {
	t.Helper()
	decisions := make([]ratelimit.Decision, len(hits))
	err := l.Take(context.Background(), longTime, hits, decisions)
	l.SetProxies(l.proxies)
	if err != nil && !l.Store.TakeLocal(err, hits, decisions) {
		t.Fatalf("no decision, and no local one: %v", err)
	}
	return decisions
}

// lose loses the database, and waits until the store has noticed.
func (l *localStore) lose(t testing.TB, db *lostDB) {
	db.set(lost)
	h := hitOn("lost", 1000, false)
	await.Within(t, longTime, "an outage", func() bool {
		_, _, err := tryOne(l, longTime, h)
		return errors.Is(err, ratelimit.ErrUnavailable)
	})
}

// What a process decides by itself: its share of what was left, all or nothing.
func TestLocalDecisions(t *testing.T) {
	s := newSite(t)
	l, db := s.localStore(4, "pgxdb")
	wide, narrow := hitOn("wide", 100, false), hitOn("narrow", 10, false)
	month := ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "month", Algorithm: ratelimit.FixedWindow,
		Events: 40, Calendar: ratelimit.Month, Zone: "Asia/Tokyo"}, Key: "k", Cost: 1}
	full := hitOn("full", 3, false)
	full.Cost = 3
	for range 20 {
		l.decide(t, wide)
	}
	exact := l.decide(t, month)[0]
	l.decide(t, full)
	if d := l.decide(t, full)[0]; d.Allowed {
		t.Fatal("a limit of 3 admits 6")
	}
	l.lose(t, db)

	if d := l.decide(t, full)[0]; d.Allowed || d.Source != ratelimit.FromBlocked {
		t.Errorf("what was refused before: %+v", d)
	}
	if d := l.decide(t, month)[0]; !d.Allowed || !d.Reset.Equal(exact.Reset) || d.Limit != 40 ||
		d.Remaining != 32 || d.Source != ratelimit.FromMemory {
		t.Errorf("a month that had %d left until %v: %+v", exact.Remaining, exact.Reset, d)
	}
	// 80 of the wide limit are left, 20 of them here; 3 of the narrow one are here.
	for i := range 3 {
		if d := l.decide(t, wide, narrow); !d[0].Allowed || !d[1].Allowed || d[0].Limit != 100 ||
			d[0].Remaining != int64(76-4*i) {
			t.Errorf("both limits, %d: %+v", i, d)
		}
	}
	if d := l.decide(t, wide, narrow); !d[0].Allowed || d[1].Allowed || d[1].Remaining != 0 ||
		d[1].RetryAfter <= 0 {
		t.Errorf("the narrow limit is used up: %+v", d)
	}
	trial := narrow
	trial.Apart = true
	if d := l.decide(t, wide, trial); !d[0].Allowed || d[1].Allowed || d[0].Remaining != 64 {
		t.Errorf("a limit on trial is used up: %+v", d)
	}
	peek := wide
	peek.Peek = true
	for range 30 {
		l.decide(t, peek)
	}
	admitted := 0
	for range 100 {
		if l.decide(t, wide)[0].Allowed {
			admitted++
		}
	}
	if admitted != 16 {
		t.Errorf("%d more passed the wide limit, want 16: the refused request was charged nothing", admitted)
	}
	db.set(answers)
	await.Within(t, longTime, "the database to decide",
		func() bool { _, _, err := tryOne(l, longTime, month); return err == nil })
	if d := l.decide(t, month)[0]; d.Remaining != exact.Remaining-2 || d.Source != ratelimit.FromPostgres {
		t.Errorf("the month, exact again: %+v", d)
	}
}

// A cost above the share passes once, and one above the limit never.
func TestCostsAboveALocalShare(t *testing.T) {
	l, db := newSite(t).localStore(4, "pgxdb")
	l.lose(t, db)
	large := hitOn("large", 100, false)
	large.Cost = 60
	if first, second := l.decide(t, large)[0],
		l.decide(t, large)[0]; !first.Allowed || second.Allowed || second.RetryAfter == ratelimit.Never {
		t.Errorf("a cost above the share: %+v, then %+v", first, second)
	}
	large.Cost = 101
	if d := l.decide(t, large)[0]; d.Allowed || d.RetryAfter != ratelimit.Never {
		t.Errorf("a cost above the limit: %+v", d)
	}

	if wrong := l.Take(context.Background(), longTime, []ratelimit.Hit{{}},
		make([]ratelimit.Decision, 1)); l.Store.TakeLocal(wrong, []ratelimit.Hit{{}},
		make([]ratelimit.Decision, 1)) {
		t.Error("a hit without a limit is decided")
	}
}

// What a process has admitted on durable limits is charged once, even if the answer is lost, and as far as
// the quota goes. A window that has ended is not charged.
func TestLocalChargesAreMadeOnce(t *testing.T) {
	t.Parallel()
	for driver := range drivers.All {
		t.Run(driver, func(t *testing.T) {
			localChargesAreMadeOnce(t, driver, answers,
				"26 units were charged, 1 were beyond the quotas, and 0 could not be charged")
		})
		t.Run(driver+", the answer is lost", func(t *testing.T) {
			localChargesAreMadeOnce(t, driver, answerIsLost,
				"0 units were charged, 0 were beyond the quotas, and 27 could not be charged")
		})
	}
}

func localChargesAreMadeOnce(t *testing.T, driver string, state int, want string) {
	s := newSite(t)
	l, db := s.localStore(1, driver)
	durable, ephemeral := hitOn("durable", 100, true), hitOn("ephemeral", 100, false)
	costly, nearly := hitOn("costly", 100, true), hitOn("nearly", 10, true)
	costly.Cost = 5
	short := hitOn("short", 100, true)
	short.Limit.Window = 500 * time.Millisecond
	for range 8 {
		l.decide(t, durable)
		l.decide(t, nearly)
	}
	s.wantNodes("n 7")
	l.lose(t, db)
	for range 20 {
		l.decide(t, durable, ephemeral)
		l.decide(t, short)
	}
	ends := time.Now().Add(short.Limit.Window) // or before
	l.decide(t, costly)
	for range 5 {
		l.decide(t, nearly)
	}
	await.Within(t, longTime, "the log",
		func() bool { return l.said("limits by itself, at 100 % of each limit") })
	// another process has taken one of two
	s.exec("UPDATE rate_limit_durable SET count = 9 WHERE prefix = 'nearly'")
	if !l.Store.Local().On {
		t.Error("limits do not count as local")
	}
	await.Within(t, longTime, "the end of the short window", func() bool { return time.Now().After(ends) })
	db.set(state)
	await.Within(t, longTime, "the log", func() bool { return l.said("limits are exact again") })
	if !l.said(want) {
		t.Errorf("the log says %q", l.notices)
	}
	if sent := db.swallowed.Load(); state == answerIsLost && sent != 1 {
		t.Errorf("the charges were sent %d times", sent)
	}
	if l.Store.Local().On {
		t.Error("limits still count as local")
	}
	rows := "costly 5, durable 28, nearly 10"
	if got := s.text("SELECT string_agg(prefix || ' ' || count, ', ' ORDER BY prefix) FROM " +
		"rate_limit_durable"); got != rows {
		t.Errorf("the database has %s, want %s", got, rows)
	}
	if got := s.text("SELECT (local_from < local_until)::text FROM rate_limit_proxies"); got != "true" {
		t.Errorf("the registry has no time of local limits: %s", got)
	}
}

// aMinute returns a hit on a durable limit that lets 100 pass at once.
func aMinute(a ratelimit.Algorithm) ratelimit.Hit {
	limit := &ratelimit.Limit{Prefix: a.String(), Algorithm: a, Events: 100, Window: time.Minute,
		Durable: true}
	if a == ratelimit.TokenBucket || a == ratelimit.GCRA {
		limit.Events, limit.Burst = 20, 100
	}
	return ratelimit.Hit{Limit: limit, Key: "k", Cost: 1}
}

// Of what a process has admitted on durable limits, only what still counts is charged: an outage may be
// longer than a window.
func TestLocalChargesAreOfTheLastWindow(t *testing.T) {
	s := newSite(t)
	var later atomic.Int64
	begin := time.Now()
	now := func() time.Time { return begin.Add(time.Duration(later.Load())) }
	db := &lostDB{DB: s.db("")}
	l := &localStore{proxies: 1}
	l.Store = s.proxy(db, engine.Options{Now: now}, registry.Node{Name: "n", Epoch: 7, Notice: l.notice})
	l.Store.UseLocal()
	l.Prepare()
	s.wantNodes("n 7")
	used := map[ratelimit.Algorithm]int64{
		ratelimit.FixedWindow: 7, ratelimit.SlidingLog: 7,
		ratelimit.SlidingWindow: 45 + 7, // half of what is in the window before
		ratelimit.TokenBucket:   90 - 20 + 7, ratelimit.GCRA: 90 - 30 + 7,
	}
	admit := func(n int) {
		for a := range used {
			for range n {
				if d := l.decide(t, aMinute(a))[0]; !d.Allowed {
					t.Fatalf("%s: %+v", a, d)
				}
			}
		}
	}
	admit(50)
	l.lose(t, db)
	admit(40)
	costly := hitOn("costs more than the share", 100, true)
	costly.Limit.Window = time.Minute
	costly.Cost = 60
	ofAQuarter := func() {
		l.proxies = 4
		if d := l.decide(t, costly)[0]; !d.Allowed {
			t.Fatalf("a cost of %d: %+v", costly.Cost, d)
		}
		l.proxies = 1
	}
	ofAQuarter()
	later.Add(int64(90 * time.Second))
	costly.Cost = 5
	ofAQuarter()
	admit(7)
	await.Within(t, longTime, "the log", func() bool { return l.said("limits by itself") })
	db.set(answers)
	await.Within(t, longTime, "the log", func() bool { return l.said("limits are exact again") })
	for a, want := range used {
		if got := 100 - left(t, l, aMinute(a)); got != want {
			t.Errorf("%s: %d are used, want %d", a, got, want)
		}
	}
	if got := 100 - left(t, l, costly); got != costly.Cost {
		t.Errorf("%d are used of a limit with a share of 25 that let 60 pass in the window before, "+
			"want %d", got, costly.Cost)
	}
}
