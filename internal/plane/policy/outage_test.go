package policy_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// askAs sends a request to a path from an address, and returns a short text of the outcome, and the error.
func askAs(p *policy.Policy, timeout time.Duration, key, user, path, address string) (string, error) {
	facts := policy.Facts{Tier: "anonymous", Method: "GET", Host: "a.test", Path: path,
		Address: netip.MustParseAddr(address)}
	var o policy.Verdict
	err := p.Evaluate(context.Background(), timeout, key, user, &facts, &o)
	return outcomeText(&o), err
}

// A look-up may take four timeouts, so it succeeds although a round trip takes longer than one.
func TestALookUpMayTakeFourTimeouts(t *testing.T) {
	s := newSite(t)
	s.user("ann", "free")
	m := &middle{db: s.db()}
	p := s.policyOn(m, policy.Settings{})
	refresh(t, p)
	hold := make(chan struct{})
	m.set(func() { m.hold = hold })
	const timeout = 10 * time.Second
	answer := make(chan string, 1)
	began := time.Now()
	go func() {
		got, err := askAs(p, timeout/100, "key of ann", "", "/", "198.51.100.1")
		answer <- fmt.Sprint(got, " ", err)
	}()
	if got := <-answer; !strings.HasPrefix(got, " anonymous ratelimit: ") {
		t.Errorf("no answer: %q", got)
	}
	if took := time.Since(began); took < 4*timeout/100 {
		t.Errorf("a look-up: got an error after %v, want it after 4 timeouts", took)
	}
	go func() {
		got, err := askAs(p, timeout, "key of ann", "", "/", "198.51.100.1")
		answer <- fmt.Sprint(got, " ", err)
	}()
	await.Within(t, time.Minute, "the look-up",
		func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.held > 0 })
	close(hold)
	same(t, "a late answer", <-answer, "ann free <nil>")
}

// While the table of API keys is locked, a policy applies changes of rules, and reports that it cannot read
// the table.
func TestRulesAreObeyedWhileTheKeysAreLocked(t *testing.T) {
	s := newSite(t)
	p := s.policy(policy.Settings{})
	refresh(t, p)
	s.exec("INSERT INTO rate_limit_bans (user_id) VALUES ('mallory')") // its trigger reads the keys
	s.exec("SELECT rate_limit_rule('closed', action => 'block', paths => '{/closed}')")
	tx := s.begin()
	if _, err := tx.Exec(context.Background(), "LOCK TABLE rate_limit_api_keys"); err != nil {
		t.Fatal(err)
	}
	refresh(t, p)
	got, err := askAs(p, 20*time.Millisecond, "x", "", "/closed", "198.51.100.1")
	same(t, "a rule", fmt.Sprint(got, err), " anonymous 403 blocked<nil>")
	got, err = askAs(p, 20*time.Millisecond, "", "mallory", "/", "198.51.100.1")
	same(t, "a ban", fmt.Sprint(got, err), "mallory anonymous 403 banned<nil>")
	if n := len(s.reports()); n == 0 {
		t.Error("got no report, want one of the locked table")
	}
}

// The clients of one network cannot fill the queue of look-ups for others, and do not delay the renewal of
// cached identities.
func TestAFloodFromOneNetwork(t *testing.T) {
	s := newSite(t)
	s.user("ann", "free")
	m := &middle{db: s.db()}
	p := s.policyOn(m, policy.Settings{})
	refresh(t, p)
	if got, err := askAs(p, longTime, "key of ann", "", "/", "198.51.100.1"); got != "ann free" ||
		err != nil {
		t.Fatal(got, err)
	}
	hold := make(chan struct{})
	m.set(func() { m.hold, m.held = hold, 0 })
	ask := func(key, address string) error {
		_, err := askAs(p, 2*time.Millisecond, key, "", "/", address)
		return err
	}
	crowded := func(err error) bool { return errors.Is(err, ratelimit.ErrUnavailable) }
	s.exec("SELECT rate_limit_rule('own', per_hour => 7)") // so that it matters who sends a request
	refresh(t, p)
	_ = ask("the first", "2001:db8:1::1") // its answer is kept back
	await.Within(t, time.Minute, "the look-up",
		func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.held == 1 })
	var clients sync.WaitGroup
	for c := range 50 {
		clients.Go(func() {
			for i := range 90 {
				_ = ask(fmt.Sprint("key ", c, " ", i), fmt.Sprintf("2001:db8:0:%x::%x", c%4, c+1))
			}
		})
	}
	clients.Wait()
	if err := ask("another", "2001:db8::ffff"); !crowded(err) {
		t.Errorf("a network with too many look-ups: got %v, want it refused", err)
	}
	if err := ask("another", "2001:db8:9::1"); crowded(err) {
		t.Errorf("another network: got %v, want it looked up", err)
	}
	// The key is due for a renewal, and shares the next statement with the flood.
	s.exec("SET session_replication_role = replica; UPDATE rate_limit_users SET tier = 'pro'; RESET " +
		"session_replication_role")
	s.after(2 * time.Minute)
	if got, err := askAs(p, longTime, "key of ann", "", "/",
		"198.51.100.1"); got != "ann free rule/own/per_hour=7" || err != nil {
		t.Error(got, err)
	}
	refresh(t, p)
	m.set(func() { m.hold, m.asked = nil, nil })
	close(hold)
	await.Within(t, time.Minute, "the renewal", func() bool {
		got, err := askAs(p, longTime, "key of ann", "", "/", "198.51.100.1")
		return got == "ann pro rule/own/per_hour=7" && err == nil
	})
	m.set(func() {
		if !slices.Contains(m.asked[0], policy.Digest("key of ann")) {
			t.Errorf("the first statement: got the digests %q, want that of the renewal", m.asked[0])
		}
	})
	await.Within(t, time.Minute, "the crowd to end",
		func() bool { return !crowded(ask("yet another", "2001:db8::ffff")) })
}

// Of more than 100,000 bans, only the newest are applied, with and without the database. The log and the
// registry report the excess.
func TestOfTooManyBansTheNewestHold(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: makes 100,001 bans")
	}
	s := newSite(t)
	s.exec("INSERT INTO rate_limit_bans (user_id, banned_at) SELECT 'u' || i, now() - i * interval '1 " +
		"second' FROM generate_series(100000, 200000) AS i")
	m := &middle{db: s.db()}
	var problems []string
	p := s.policyOn(m, policy.Settings{OnApplied: func(_ int64, _ string, now []string) { problems = now }})
	refresh(t, p)
	const problem = "100001 bans are in force, and only the newest 100000 hold: ban networks instead of " +
		"addresses, or end some"
	same(t, "what was reported", s.reports(), problem)
	same(t, "what the proxy lacks", strings.Join(problems, "|"), problem)
	for _, down := range []bool{false, true} {
		m.set(func() { m.down = down })
		for user, want := range map[string]string{"u100000": "u100000 anonymous 403 banned",
			"u199999": "u199999 anonymous 403 banned", "u200000": "u200000 anonymous"} {
			got, _ := askAs(p, longTime, "", user, "/", "198.51.100.1")
			same(t, fmt.Sprint("the database is down: ", down), got, want)
		}
	}
	m.set(func() { m.down = false })
	s.awaitAnswers()
	s.exec("DELETE FROM rate_limit_bans WHERE user_id = 'u100000'")
	refresh(t, p)
	got, err := askAs(p, longTime, "", "u200000", "/", "198.51.100.1")
	same(t, "the oldest, once others have ended", fmt.Sprint(got, err), "u200000 anonymous 403 banned<nil>")
}
