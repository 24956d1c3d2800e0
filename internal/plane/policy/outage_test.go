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
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// sendAs evaluates a request to a path from an address. sendAs returns a short text of the outcome, and the
// error.
func sendAs(p *policy.Policy, timeout time.Duration, key, user, path, address string) (string, error) {
	facts := policy.Facts{DefaultTier: "anonymous", Method: "GET", Host: "a.test", Path: path}
	if address != "" {
		facts.Address = netip.MustParseAddr(address)
	}
	var v policy.Verdict
	err := p.Evaluate(context.Background(), timeout, key, user, &facts, &v)
	return verdictText(&v), err
}

// A look-up may take four timeouts, so that it can succeed although a round trip takes longer than one
// timeout. A look-up without a result fails after four timeouts.
func TestLookupMayTakeFourTimeouts(t *testing.T) {
	_, m, p := newControlledPolicy(t)
	hold := make(chan struct{})
	m.set(func() { m.hold = hold })
	const timeout = 10 * time.Second
	start := time.Now()
	got, err := sendAs(p, timeout/100, "key of ann", "", "/", "198.51.100.1")
	if took := time.Since(start); got != " anonymous" || err == nil || took < 4*timeout/100 {
		t.Errorf("a look-up without a result: got %q, %v after %v, want an error after 4 timeouts", got, err,
			took)
	}
	outcomes := make(chan string, 1)
	go func() {
		got, err := sendAs(p, timeout, "key of ann", "", "/", "198.51.100.1")
		outcomes <- fmt.Sprint(got, " ", err)
	}()
	m.awaitHeld(t)
	close(hold)
	check.Equal(t, "a late result", <-outcomes, "ann free <nil>")
}

// While the table of API keys is locked, a policy still applies changes of rules and bans, and reports that
// it cannot read the table.
func TestRulesApplyWhileKeysAreLocked(t *testing.T) {
	d := newTestDB(t)
	p := d.newPolicy(policy.Settings{})
	refresh(t, p)
	d.exec("INSERT INTO rate_limit_bans (user_id) VALUES ('mallory')") // its trigger reads the keys
	d.exec("SELECT rate_limit_rule('closed', action => 'block', paths => '{/closed}')")
	tx := d.begin()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE rate_limit_api_keys"); err != nil {
		t.Fatal(err)
	}
	refresh(t, p)
	got, err := sendAs(p, 20*time.Millisecond, "x", "", "/closed", "198.51.100.1")
	check.Equal(t, "a rule", fmt.Sprint(got, err), " anonymous 403 blocked<nil>")
	got, err = sendAs(p, 20*time.Millisecond, "", "mallory", "/", "198.51.100.1")
	check.Equal(t, "a ban", fmt.Sprint(got, err), "mallory anonymous 403 banned<nil>")
	if d.reportedErrors() == "" {
		t.Error("reported errors: got none, want one about the locked table")
	}
}

// While the rules cannot be read, a changed identity is looked up again once, and not after each poll.
func TestIdentityIsEvictedOnceWhileRulesAreLocked(t *testing.T) {
	d := newTestDB(t)
	d.addUser("ann", "free")
	p := d.newPolicy(policy.Settings{})
	refresh(t, p)
	checkAnn(t, p, "before", "ann free")
	d.exec("SELECT rate_limit_rule('own', per_hour => 7); UPDATE rate_limit_users SET tier = 'pro'")
	tx := d.begin()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE rate_limit_rules"); err != nil {
		t.Fatal(err)
	}
	before := p.Stats().Lookups
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if err := p.Refresh(ctx); err == nil {
			t.Error("a refresh while the rules are locked: got no error, want one")
		}
		cancel()
		checkAnn(t, p, "meanwhile", "ann pro")
	}
	check.Equal(t, "look-ups while the rules are locked", p.Stats().Lookups-before, 1)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	refresh(t, p)
	checkAnn(t, p, "afterwards", "ann pro rule/own/per_hour=7")
}

// The clients of one network cannot fill the queue of look-ups for others, and do not delay the renewal of
// cached identities.
func TestFloodFromOneNetwork(t *testing.T) {
	d, m, p := newControlledPolicy(t)
	checkAnn(t, p, "before the flood", "ann free")
	hold := make(chan struct{})
	m.set(func() { m.hold, m.held = hold, 0 })
	send := func(key, address string) error {
		_, err := sendAs(p, 2*time.Millisecond, key, "", "/", address)
		return err
	}
	isCrowded := func(err error) bool { return errors.Is(err, ratelimit.ErrUnavailable) }
	d.exec("SELECT rate_limit_rule('own', per_hour => 7)") // so that outcomes depend on the sender
	refresh(t, p)
	_ = send("the first", "2001:db8:1::1") // its result is delayed
	m.awaitHeld(t)
	var clients sync.WaitGroup
	for c := range 50 {
		clients.Go(func() {
			address := fmt.Sprintf("2001:db8:0:%x::%x", c%4, c+1)
			if c%4 == 3 {
				address = "" // unknown
			}
			for i := range 90 {
				_ = send(fmt.Sprint("key ", c, " ", i), address)
			}
		})
	}
	clients.Wait()
	for _, address := range []string{"2001:db8::ffff", ""} {
		if err := send("another", address); !isCrowded(err) {
			t.Errorf("the network of %q, with too many look-ups: got the error %v, want ErrUnavailable",
				address, err)
		}
	}
	if err := send("another", "2001:db8:9::1"); isCrowded(err) {
		t.Errorf("another network: got the error %v, want none or ErrTimeout", err)
	}
	// The key is due for a renewal, and shares the next statement with the flood.
	d.exec("SET session_replication_role = replica; UPDATE rate_limit_users SET tier = 'pro'; RESET " +
		"session_replication_role")
	d.advance(2 * time.Minute)
	checkAnn(t, p, "before the renewal", "ann free rule/own/per_hour=7")
	refresh(t, p)
	m.set(func() { m.hold, m.askedDigests = nil, nil })
	close(hold)
	await.Within(t, time.Minute, "the renewal", func() bool {
		got, err := tryVerdictOf(p, "key of ann", "")
		return got == "ann pro rule/own/per_hour=7" && err == nil
	})
	m.set(func() {
		if !slices.Contains(m.askedDigests[0], policy.Digest("key of ann")) {
			t.Errorf("the first statement: got the digests %q, want the renewed key's too", m.askedDigests[0])
		}
	})
	await.Within(t, time.Minute, "the end of the flood",
		func() bool { return !isCrowded(send("yet another", "2001:db8::ffff")) })
}

// Of more than 100,000 bans, only the newest 100,000 are applied, with and without the database. The log and
// the registry report the excess.
func TestNewestOfTooManyBansApply(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: makes 100,001 bans")
	}
	d := newTestDB(t)
	d.exec("INSERT INTO rate_limit_bans (user_id, banned_at) SELECT 'u' || i, now() - i * interval '1 " +
		"second' FROM generate_series(100000, 200000) AS i")
	m := &controlledDB{db: d.openDB()}
	var problems []string
	p := d.newPolicyOn(m, policy.Settings{
		OnApplied: func(_, _ string, current []string) { problems = current },
	})
	refresh(t, p)
	const problem = "100001 bans are in force, and only the newest 100000 hold: ban networks instead of " +
		"addresses, or end some"
	check.Equal(t, "reported errors", d.reportedErrors(), problem)
	check.Equal(t, "problems in the registry", strings.Join(problems, "|"), problem)
	for _, down := range []bool{false, true} {
		m.set(func() { m.down = down })
		for user, want := range map[string]string{"u100000": "u100000 anonymous 403 banned",
			"u199999": "u199999 anonymous 403 banned", "u200000": "u200000 anonymous"} {
			got, _ := sendAs(p, testTimeout, "", user, "/", "198.51.100.1")
			check.Equal(t, fmt.Sprint("the database is down: ", down), got, want)
		}
	}
	m.set(func() { m.down = false })
	d.awaitRecovery()
	d.exec("DELETE FROM rate_limit_bans WHERE user_id = 'u100000'")
	refresh(t, p)
	check.Equal(t, "the oldest, once others have ended", verdictOf(t, p, "", "u200000"),
		"u200000 anonymous 403 banned")
}
