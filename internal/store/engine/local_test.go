package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// openLocalProxy opens the store of one of several proxies. The store decides by itself while its database is
// lost.
func (s *testDB) openLocalProxy(proxies int64, driver string, o engine.Options) (*localProxy, *lostDB) {
	db := &lostDB{DB: drivers.All[driver](s.t, s.dsn)}
	p := &localProxy{proxies: proxies}
	o.Log = p.recordLog
	p.Store = s.openProxy(db, o, &registry.Node{Name: "n", Epoch: 7})
	p.Store.UseLocal()
	p.Prepare()
	return p, db
}

// localProxy is a proxy's store with its log.
type localProxy struct {
	*store.Store
	proxies int64 // the number of registered proxies

	mu      sync.Mutex
	notices []string
}

func (p *localProxy) recordLog(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notices = append(p.notices, text)
}

// hasLogged reports whether the log contains text.
func (p *localProxy) hasLogged(text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Contains(strings.Join(p.notices, "\n"), text)
}

// decide takes hits, or decides them locally during an outage.
func (p *localProxy) decide(t testing.TB, hits ...ratelimit.Hit) []ratelimit.Decision {
	t.Helper()
	decisions := make([]ratelimit.Decision, len(hits))
	err := p.Take(t.Context(), testTimeout, hits, decisions)
	p.SetProxies(p.proxies)
	if err != nil && !p.Store.TakeLocal(err, hits, decisions) {
		t.Fatalf("TakeLocal after error %v returns false, want true", err)
	}
	return decisions
}

// loseDatabase makes the database fail, and waits until the store has detected the outage.
func (p *localProxy) loseDatabase(t testing.TB, db *lostDB) {
	db.set(dbLost)
	h := hitOn("lost", 1000, false)
	await.Within(t, testTimeout, "an outage", func() bool {
		_, _, err := tryOne(p, testTimeout, h)
		return errors.Is(err, ratelimit.ErrUnavailable)
	})
}

// awaitExact restores the database to a state, and waits until the proxy logs that limits are exact again.
func (p *localProxy) awaitExact(t testing.TB, db *lostDB, state dbState) {
	t.Helper()
	await.Within(t, testTimeout, "the log", func() bool { return p.hasLogged("limits by itself") })
	db.set(state)
	await.Within(t, testTimeout, "the log", func() bool { return p.hasLogged("limits are exact again") })
}

// During an outage, a process decides by itself, within its share of the remaining quota. A request on
// several limits is charged to all of them or to none.
func TestLocalDecisionsStayWithinShare(t *testing.T) {
	s := newTestDB(t)
	const proxies, wideUsed, wideLeft = 4, 20, 80
	p, db := s.openLocalProxy(proxies, "pgxdb", engine.Options{})
	wide, narrow := hitOn("wide", wideUsed+wideLeft, false), hitOn("narrow", 10, false)
	month := ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "month", Algorithm: ratelimit.FixedWindow,
		Events: 40, Calendar: ratelimit.Month, TimeZone: "Asia/Tokyo",
		Anchor: ratelimit.AnchorOn(ratelimit.Month, time.Now().AddDate(0, 0, -14))}, Key: "k", Cost: 1}
	for range wideUsed {
		p.decide(t, wide)
	}
	exact := p.decide(t, month)[0]
	p.loseDatabase(t, db)
	if d := p.decide(t, month)[0]; outcomes(d) != "allowed 32 of 40" || !d.Reset.Equal(exact.Reset) ||
		d.Source != ratelimit.FromMemory {
		t.Errorf("month: got %+v, want allowed 32 of 40 from memory, until %v", d, exact.Reset)
	}
	// A hit reduces what is left by its cost in each process. The share of the narrow limit is 3.
	for i := 1; i <= 3; i++ {
		want := fmt.Sprintf("allowed %d of 100", wideLeft-i*proxies)
		if d := p.decide(t, wide, narrow); outcomes(d[0]) != want || !d[1].Allowed {
			t.Errorf("wide and narrow, request %d: got %s, want %s, and allowed", i, outcomes(d...), want)
		}
	}
	d := p.decide(t, wide, narrow)
	if !d[0].Allowed || outcomes(d[1]) != "refused 0 of 10" || d[1].RetryAfter <= 0 {
		t.Errorf("narrow limit used up: got %+v, want it to refuse", d)
	}
	admitted := 0
	for range 100 {
		if p.decide(t, wide)[0].Allowed {
			admitted++
		}
	}
	check.Equal(t, "more of the wide limit", admitted, wideLeft/proxies-3)
	db.set(dbAnswers)
	await.Within(t, testTimeout, "the database to decide",
		func() bool { _, _, err := tryOne(p, testTimeout, month); return err == nil })
	if d := p.decide(t, month)[0]; d.Remaining != exact.Remaining-3 || d.Source != ratelimit.FromPostgres {
		t.Errorf("month, exact again: got %+v, want %d left from the database", d, exact.Remaining-3)
	}
}

// During an outage, a cost above the share of the process passes once, and a cost above the limit never
// passes.
func TestCostsAboveLocalShare(t *testing.T) {
	p, db := newTestDB(t).openLocalProxy(4, "pgxdb", engine.Options{})
	p.loseDatabase(t, db)
	large := hitOn("large", 100, false)
	large.Cost = 60
	first, second := p.decide(t, large)[0], p.decide(t, large)[0]
	if !first.Allowed || second.Allowed || second.RetryAfter == ratelimit.Never {
		t.Errorf("a cost above the share: got %+v, then %+v, want it allowed once", first, second)
	}
	large.Cost = 101
	if d := p.decide(t, large)[0]; d.Allowed || d.RetryAfter != ratelimit.Never {
		t.Errorf("a cost above the limit: got %+v, want a refusal with RetryAfter Never", d)
	}
	_, _, err := tryOne(p, testTimeout, ratelimit.Hit{})
	if p.Store.TakeLocal(err, []ratelimit.Hit{{}}, make([]ratelimit.Decision, 1)) {
		t.Error("TakeLocal of a hit without a limit returns true, want false")
	}
}

// Hits that a process admitted during an outage are charged after it. They are charged up to the quota, not
// if their window has ended, and only once, even if the result of the charge is lost.
func TestLocalChargesAreMadeOnce(t *testing.T) {
	t.Parallel()
	for state, want := range map[dbState]string{
		dbAnswers:      "46 were charged, 1 were beyond the quotas, and 0 could not be charged",
		dbLosesAnswers: "0 were charged, 0 were beyond the quotas, and 47 could not be charged",
	} {
		t.Run(fmt.Sprint(state), func(t *testing.T) {
			t.Parallel()
			checkLocalCharges(t, state, want)
		})
	}
}

func checkLocalCharges(t *testing.T, state dbState, want string) {
	s := newTestDB(t)
	p, db := s.openLocalProxy(1, "pgwire", engine.Options{})
	durable, ephemeral := hitOn("durable", 100, true), hitOn("ephemeral", 100, false)
	costly, nearly := hitOn("costly", 100, true), hitOn("nearly", 10, true)
	costly.Cost = 5
	short := hitOn("short", 100, true)
	short.Limit.Window = 500 * time.Millisecond
	for range 8 {
		p.decide(t, durable)
		p.decide(t, nearly)
	}
	s.awaitNodes("n 7")
	p.loseDatabase(t, db)
	for range 20 {
		p.decide(t, durable, ephemeral)
		p.decide(t, short)
	}
	ends := time.Now().Add(short.Limit.Window) // the latest end of the short window
	p.decide(t, costly)
	for range 5 {
		p.decide(t, nearly)
	}
	// Another process has taken one of the two units that were left.
	s.exec("UPDATE rate_limit_durable SET count = 9 WHERE prefix = 'nearly'")
	if !p.Store.Local().On {
		t.Error("Local().On is false during the outage, want true")
	}
	await.Within(t, testTimeout, "the end of the short window", func() bool { return time.Now().After(ends) })
	p.awaitExact(t, db, state)
	if !p.hasLogged(want) || !p.hasLogged("limits by itself, at 100 % of each limit") {
		t.Errorf("the log is %q, want %q", p.notices, want)
	}
	if sent := db.swallowed.Load(); state == dbLosesAnswers && sent != 1 {
		t.Errorf("the charges were sent %d times, want once", sent)
	}
	if p.Store.Local().On {
		t.Error("Local().On is true after the outage, want false")
	}
	const rows = "costly 5, durable 28, ephemeral 20, nearly 10"
	got := s.queryText("SELECT string_agg(concat_ws(' ', prefix, count), ', ' ORDER BY prefix) " +
		"FROM (TABLE rate_limit_durable UNION ALL TABLE rate_limit_ephemeral) c WHERE prefix <> 'lost'")
	check.Equal(t, "the counts", got, rows)
	s.awaitText("SELECT (local_from < local_until)::text FROM rate_limit_proxies", "true")
}

// hundredPerMinute returns a hit on a durable limit that allows 100 hits in one burst.
func hundredPerMinute(a ratelimit.Algorithm) ratelimit.Hit {
	limit := &ratelimit.Limit{Prefix: a.String(), Algorithm: a, Events: 100, Window: time.Minute,
		Durable: true}
	if a == ratelimit.TokenBucket || a == ratelimit.GCRA {
		limit.Events, limit.Burst = 20, 100
	}
	return ratelimit.Hit{Limit: limit, Key: "k", Cost: 1}
}

// An outage may be longer than a window. Therefore, of the hits that a process admitted during the outage,
// only those are charged that still count in the row.
func TestLocalChargesOfLastWindow(t *testing.T) {
	s := newTestDB(t)
	var offset atomic.Int64
	start := time.Now()
	now := func() time.Time { return start.Add(time.Duration(offset.Load())) }
	p, db := s.openLocalProxy(1, "pgxdb", engine.Options{Now: now})
	s.awaitNodes("n 7")
	charged := map[ratelimit.Algorithm]int64{
		ratelimit.FixedWindow: 7, ratelimit.SlidingLog: 7,
		ratelimit.SlidingWindow: 45 + 7, // half of the previous window's 90
		ratelimit.TokenBucket:   90 - 20 + 7, ratelimit.GCRA: 90 - 30 + 7,
	}
	admit := func(n int) {
		for a := range charged {
			for range n {
				if d := p.decide(t, hundredPerMinute(a))[0]; !d.Allowed {
					t.Fatalf("%s: got %+v, want it allowed", a, d)
				}
			}
		}
	}
	admit(50)
	p.loseDatabase(t, db)
	admit(40)
	costly := hitOn("costs more than the share", 100, true)
	costly.Limit.Window = time.Minute
	costly.Cost = 60
	takeCostly := func() { // with a share of a quarter
		p.proxies = 4
		if d := p.decide(t, costly)[0]; !d.Allowed {
			t.Fatalf("a cost of %d: got %+v, want it allowed", costly.Cost, d)
		}
		p.proxies = 1
	}
	takeCostly()
	offset.Add(int64(90 * time.Second))
	costly.Cost = 5
	takeCostly()
	admit(7)
	p.awaitExact(t, db, dbAnswers)
	for a, want := range charged {
		check.Equal(t, a.String(), 100-remaining(t, p, hundredPerMinute(a)), want)
	}
	check.Equal(t, "units after 60 in the window before", 100-remaining(t, p, costly), costly.Cost)
}
