package policy_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
)

// A key that is revoked during its look-up is refused at once, although the database answered before the
// revocation. The answer is neither used nor cached.
func TestAKeyRevokedDuringItsLookUp(t *testing.T) {
	s := newSite(t)
	s.user("ann", "free")
	m := &middle{db: s.db()}
	p := s.policyOn(m, policy.Settings{})
	refresh(t, p)
	for _, change := range []struct{ sql, want string }{
		{"UPDATE rate_limit_api_keys SET revoked_at = now()", " anonymous 401 key_revoked"}, // by digest
		{"UPDATE rate_limit_api_keys SET revoked_at = NULL", "ann free"},
		{"UPDATE rate_limit_users SET tier = 'pro'", "ann pro"}, // by user
		{"DELETE FROM rate_limit_users", " anonymous 401 unknown_key"},
	} {
		s.exec("UPDATE rate_limit_api_keys SET hint = hint || 'x'")
		// so that it is not remembered
		s.exec("UPDATE rate_limit_api_keys SET hint = coalesce(hint, '') || 'x'")
		refresh(t, p)
		hold := make(chan struct{})
		m.set(func() { m.hold, m.held = hold, 0 })
		answer := make(chan string)
		go func() {
			text, err := tryDecide(p, "key of ann", "")
			answer <- fmt.Sprint(text, err)
		}()
		await.Within(t, time.Minute, "the look-up",
			func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.held == 1 })
		s.exec(change.sql)
		refresh(t, p)
		m.set(func() { m.hold = nil })
		close(hold)
		same(t, "the request under way at "+change.sql, <-answer, change.want+"<nil>")
		same(t, "the next request after "+change.sql, decided(t, p, "key of ann", ""), change.want)
	}
}

// The look-ups of any number of unknown keys share statements. One statement is in flight at a time, and at
// most one begins within 5 ms.
func TestAFloodOfInventedKeys(t *testing.T) {
	s := newSite(t)
	s.user("ann", "free")
	m := &middle{db: s.db()}
	p := s.policyOn(m, policy.Settings{MaxIdentities: 100})
	refresh(t, p)
	same(t, "a real key", decided(t, p, "key of ann", ""), "ann free")
	began, before := time.Now(), p.Stats().LookUps
	var clients sync.WaitGroup
	for c := range 50 {
		clients.Add(1)
		go func() {
			defer clients.Done()
			for i := range 100 {
				key, err := policy.NewKey()
				if err != nil {
					t.Error(err)
					return
				}
				if text, err := tryDecide(p, key, ""); text != " anonymous 401 unknown_key" || err != nil {
					t.Errorf("client %d, key %d: %q %v", c, i, text, err)
					return
				}
			}
		}()
	}
	clients.Wait()
	took, sent := time.Since(began), p.Stats().LookUps-before
	if most := int64(took/(5*time.Millisecond)) + 2; sent > most || sent < 100 {
		t.Errorf("got %d statements in %v, want 100 to %d", sent, took, most)
	}
	if m.most != 1 {
		t.Errorf("got %d statements in flight at once, want 1", m.most)
	}
	m.set(func() { m.down = true })
	same(t, "the real key afterwards, without the database", decided(t, p, "key of ann", ""), "ann free")
	// The checksum of this key is wrong, so the database is not asked.
	same(t, "a mistyped key, without the database",
		decided(t, p, "prl_00000000000000000000000000000000x", ""), " anonymous 401 unknown_key")
}

// Rows that are written without triggers, as by a subscription, take effect nevertheless. A proxy reads all
// rules about every ten minutes, at a random time, and an identity once a minute.
func TestEverythingIsReadAnewNowAndThen(t *testing.T) {
	s := newSite(t)
	s.user("ann", "free")
	p := s.policy(policy.Settings{Random: func() float64 { return 0.5 }})
	s.after(0)
	refresh(t, p)
	decided(t, p, "key of ann", "")
	s.exec(`SET session_replication_role = replica;
		SELECT rate_limit_rule('plan', per_hour => 1000); UPDATE rate_limit_users SET tier = 'pro';
		RESET session_replication_role`)
	s.after(59 * time.Second)
	refresh(t, p)
	same(t, "after 59 seconds", decided(t, p, "key of ann", ""), "ann free")
	s.after(2 * time.Second)
	await.Within(t, time.Minute, "the identity", func() bool {
		refresh(t, p)
		return decided(t, p, "key of ann", "") == "ann pro"
	})
	s.after(9*time.Minute - 2*time.Second)
	refresh(t, p)
	same(t, "before ten minutes", decided(t, p, "key of ann", ""), "ann pro")
	s.after(2 * time.Second)
	refresh(t, p)
	await.Within(t, time.Minute, "the rules",
		func() bool { return decided(t, p, "key of ann", "") == "ann pro rule/plan/per_hour=1000" })
}

// Changes that are older than 30 days are deleted, some each minute.
func TestOldChangesAreForgotten(t *testing.T) {
	s := newSite(t)
	s.exec("INSERT INTO rate_limit_changes (kind, by, at) SELECT 'user', 'test', now() - interval '31 " +
		"days' FROM generate_series(1, 25000)")
	s.exec("INSERT INTO rate_limit_changes (kind, by, at) VALUES ('user', 'test', now() - interval '29 " +
		"days')")
	p := s.policy(policy.Settings{})
	for range 3 {
		s.after(2 * time.Minute)
		refresh(t, p)
	}
	if n := s.number("SELECT count(*) FROM rate_limit_changes WHERE kind = 'user'"); n != 1 {
		t.Errorf("got %d changes, want 1", n)
	}
}
