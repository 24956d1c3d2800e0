package policy_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// keyCount is the number of API keys named key-1 and so on.
const keyCount = 5000

// decideUntil decides requests with one key after the other until ctx ends. It counts them in decisions.
func decideUntil(ctx context.Context, t *testing.T, p *policy.Policy, decisions *atomic.Int64) {
	for ; ctx.Err() == nil; decisions.Add(1) {
		number := 1 + decisions.Load()%keyCount
		got, err := tryVerdictOf(p, fmt.Sprint("key-", number), "")
		if want := fmt.Sprintf("user-%d free rule/plan/per_hour=1000", number); err != nil || got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
			return
		}
	}
}

// While the tables are upgraded, a proxy decides without interruption, also while another session makes the
// upgrade wait. Each request has an API key that is not cached, so that it needs the tables.
func TestUpgradeStopsNoDecision(t *testing.T) {
	d := newTestDB(t)
	s := sqltest.Connect(t, d.dsn)
	s.Exec(fmt.Sprintf(`INSERT INTO rate_limit_users (user_id, tier)
			SELECT 'user-' || i, 'free' FROM generate_series(1, %[1]d) i;
		INSERT INTO rate_limit_api_keys (digest, user_id)
			SELECT sha256(convert_to('key-' || i, 'UTF8')), 'user-' || i FROM generate_series(1, %[1]d) i;
		SELECT rate_limit_rule('plan', tiers => '{free}', per_hour => 1000);`, keyCount) + sqltest.Older)
	p := d.newPolicy(policy.Settings{MaxIdentities: 16})
	refresh(t, p)
	loading, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	var decisions atomic.Int64
	load.Go(func() { decideUntil(loading, t, p, &decisions) })
	checkProgress := func() {
		t.Helper()
		before := decisions.Load()
		await.Within(t, time.Minute, "further decisions",
			func() bool { return decisions.Load() >= before+20 })
	}
	writer := d.begin()
	_, err := writer.Exec(t.Context(), "UPDATE rate_limit_rules SET comment = 'not committed'")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := s.Try(schema.Lock + schema.Upgrade); err == nil || !strings.Contains(err.Error(),
			"TRIGGER rate_limit_") {
			t.Errorf("an upgrade of locked tables ended with %v, want an error that names a trigger", err)
		}
		checkProgress()
	}
	if err := writer.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	await.Within(t, time.Minute, "the upgrade", func() bool { // an autovacuum may hold a lock
		refresh(t, p)
		return s.Try(schema.Lock+schema.Upgrade) == nil
	})
	checkProgress()
	stop()
	load.Wait()
}

// A proxy says that tables are older than it. On tables that it cannot use, requests have ErrVersion, but for
// those that the rules in memory refuse. A rule by which only a newer program can match is unusable.
func TestTablesOfAnotherVersion(t *testing.T) {
	d := newTestDB(t)
	s := sqltest.Connect(t, d.dsn)
	d.addUser("ann", "free")
	d.exec("SELECT rate_limit_rule('plan', per_hour => 10)")
	d.exec("SELECT rate_limit_rule('closed', action => 'block', methods => '{PUT}')")
	d.exec("INSERT INTO rate_limit_bans (network) VALUES ('192.0.2.0/24')")
	var problems []string
	settings := policy.Settings{MemoSize: 9, OnApplied: func(_, _ string,
		lines []string) {
		problems = lines
	}}
	p := d.newPolicy(settings)
	refresh(t, p)
	checkAnn(t, p, "on tables of this version", "ann free rule/plan/per_hour=10")
	check.Equal(t, "the problems", strings.Join(problems, "; "), "")

	s.Exec(sqltest.Older + sqltest.Says(`"restricts": {[^}]*}`, `"restricts": {"methods": 999}`))
	d.exec("UPDATE rate_limit_rules SET comment = 'changed'")
	refresh(t, p)
	checkAnn(t, p, "on older tables", "ann free rule/plan/per_hour=10")
	check.Equal(t, "the problems", strings.Join(problems, "; "),
		fmt.Sprintf("the tables have the revision 0, "+
			"and this program brings %d: run pg-ratelimit migrate, or psql -f schema.sql; "+
			"rule closed: "+
			"methods: only a newer version of this program can match by it: upgrade this program "+
			"(it stays as it was)",
			schema.ThisRevision))

	s.Exec(sqltest.Says(`"oldest": [0-9]+`, `"oldest": 99`))
	for name, p := range map[string]*policy.Policy{"a proxy that runs": p,
		"one that starts": d.newPolicy(settings)} {
		if err := p.Refresh(t.Context()); !errors.Is(err, schema.ErrVersion) {
			t.Errorf("%s: a poll ended with %v, want ErrVersion", name, err)
		}
		for _, key := range []string{"", "key of ann", "key of bob"} {
			if _, err := tryVerdictOf(p, key, ""); !errors.Is(err, schema.ErrVersion) {
				t.Errorf("%s, key %q: got %v, want ErrVersion", name, key, err)
			}
			var v policy.Verdict
			if policy.Recall(p, key, &policy.Facts{DefaultTier: "free", Path: "/", Method: "GET"}, &v) {
				t.Errorf("%s, key %q: it is recalled, want an evaluation", name, key)
			}
		}
	}
	checkRefused(t, p, "the tables of a newer version")
	s.Exec(sqltest.Says(`"oldest": [0-9]+`, `"oldest": 1`))
	refresh(t, p)
	checkAnn(t, p, "on tables of this version again", "ann free rule/plan/per_hour=10")
}
