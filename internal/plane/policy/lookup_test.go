package policy_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// If a key or its user changes while the key's look-up is in flight, the request gets the new state: the
// result of the look-up is older than the change, and is neither used nor cached.
func TestChangeDuringLookupIsSeen(t *testing.T) {
	d, m, p := newControlledPolicy(t)
	for _, change := range []struct{ sql, want string }{
		{"UPDATE rate_limit_api_keys SET revoked_at = now()", "ann anonymous 401 key_revoked"}, // by digest
		{"UPDATE rate_limit_api_keys SET revoked_at = NULL", "ann free"},
		{"UPDATE rate_limit_users SET tier = 'pro'", "ann pro"}, // by user
		{"DELETE FROM rate_limit_users", " anonymous 401 unknown_key"},
	} {
		d.exec("UPDATE rate_limit_api_keys SET hint = coalesce(hint, '') || 'x'") // evicts the key
		refresh(t, p)
		hold := make(chan struct{})
		m.set(func() { m.hold, m.held = hold, 0 })
		outcomes := make(chan string)
		go func() {
			text, err := tryVerdictOf(p, "key of ann", "")
			outcomes <- fmt.Sprint(text, err)
		}()
		m.awaitHeld(t)
		d.exec(change.sql)
		refresh(t, p)
		m.set(func() { m.hold = nil })
		close(hold)
		check.Equal(t, "the request during "+change.sql, <-outcomes, change.want+"<nil>")
		checkAnn(t, p, "the next request after "+change.sql, change.want)
	}
}

// Look-ups of unknown keys share statements: at most one statement is in flight, and at most one starts
// within 5 ms.
func TestUnknownKeysShareStatements(t *testing.T) {
	d := newTestDB(t)
	d.addUser("ann", "free")
	m := &controlledDB{db: d.openDB()}
	p := d.newPolicyOn(m, policy.Settings{MaxIdentities: 100})
	refresh(t, p)
	checkAnn(t, p, "a real key", "ann free")
	start, before := time.Now(), p.Stats().Lookups
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
				if text, err := tryVerdictOf(p, key, ""); text != " anonymous 401 unknown_key" || err != nil {
					t.Errorf("client %d, key %d: got %q, %v, want unknown_key", c, i, text, err)
					return
				}
			}
		}()
	}
	clients.Wait()
	took, sent := time.Since(start), p.Stats().Lookups-before
	if limit := int64(took/(5*time.Millisecond)) + 2; sent > limit || sent < 100 {
		t.Errorf("statements in %v: got %d, want 100 to %d", took, sent, limit)
	}
	check.Equal(t, "concurrent statements", m.maxLookups, 1)
	m.set(func() { m.down = true })
	checkAnn(t, p, "the real key afterwards, without the database", "ann free")
	// The checksum of this key is wrong, so the policy sends no statement.
	check.Equal(t, "a mistyped key, without the database",
		verdictOf(t, p, "prl_00000000000000000000000000000000x", ""), " anonymous 401 unknown_key")
}

// Rows that were written without triggers, as by a subscription, are not in the log of changes. They take
// effect all the same: a proxy reads each identity again after a minute, and all rules after about ten
// minutes.
func TestRowsWithoutTriggersTakeEffect(t *testing.T) {
	d := newTestDB(t)
	d.addUser("ann", "free")
	p := d.newPolicy(policy.Settings{Random: func() float64 { return 0.5 }})
	d.advance(0)
	refresh(t, p)
	verdictOf(t, p, "key of ann", "")
	d.exec(`SET session_replication_role = replica;
		SELECT rate_limit_rule('plan', per_hour => 1000); UPDATE rate_limit_users SET tier = 'pro';
		RESET session_replication_role`)
	d.advance(59 * time.Second)
	refresh(t, p)
	checkAnn(t, p, "after 59 seconds", "ann free")
	d.advance(2 * time.Second)
	await.Within(t, time.Minute, "the identity", func() bool {
		refresh(t, p)
		return verdictOf(t, p, "key of ann", "") == "ann pro"
	})
	d.advance(9*time.Minute - 2*time.Second)
	refresh(t, p)
	checkAnn(t, p, "before ten minutes", "ann pro")
	d.advance(2 * time.Second)
	refresh(t, p)
	await.Within(t, time.Minute, "the rules",
		func() bool { return verdictOf(t, p, "key of ann", "") == "ann pro rule/plan/per_hour=1000" })
}
