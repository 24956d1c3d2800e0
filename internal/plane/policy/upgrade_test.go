package policy_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

var upgradeKeys = flag.Int("upgrade-keys", 20000, "API keys in TestAnUpgradeStopsNoDecision")

// TestAnUpgradeStopsNoDecision: a proxy upgrades the tables of the version before in place, while requests come with
// API keys that it has not seen. It decides all the time: by the tables as they are as long as a
// transaction of another session keeps it from changing them, and by the new ones afterwards.
func TestAnUpgradeStopsNoDecision(t *testing.T) {
	const most = 500 * time.Millisecond
	ctx := context.Background()
	s := newEmptySite(t)
	old, err := os.ReadFile("../../core/schema/testdata/policy_4.sql")
	if err != nil {
		t.Fatal(err)
	}
	cluster.Execute(t, s.dsn, schema.Counters+string(old))
	cluster.Execute(t, s.dsn, fmt.Sprintf(`INSERT INTO rate_limit_tiers (tier) VALUES ('free');
		INSERT INTO rate_limit_users (user_id, tier) SELECT 'user-' || i, 'free' FROM generate_series(1, %[1]d) i;
		INSERT INTO rate_limit_api_keys (digest, user_id) SELECT sha256(convert_to('key-' || i, 'UTF8')), 'user-' || i FROM generate_series(1, %[1]d) i;
		SELECT rate_limit_rule('plan', tiers => '{free}', per_hour => 1000)`, *upgradeKeys))
	p := s.policy(policy.Settings{MaxIdentities: 16})

	reader := s.begin()
	if _, err := reader.Exec(ctx, "SELECT FROM rate_limit_rules, rate_limit_rule_limits, rate_limit_api_keys, rate_limit_users, rate_limit_tiers LIMIT 1"); err != nil {
		t.Fatal(err)
	}
	loading, stop := context.WithCancel(ctx)
	var load sync.WaitGroup
	var slowest atomic.Int64
	decisions := 0
	refresh(t, p)
	load.Add(1)
	go func() {
		defer load.Done()
		for ; loading.Err() == nil; decisions++ {
			began := time.Now()
			user := fmt.Sprint("user-", 1+decisions%*upgradeKeys)
			got, err := tryDecide(p, "key-"+user[len("user-"):], "")
			if want := user + " free rule/plan/per_hour=1000"; err != nil || got != want {
				t.Errorf("decided %q, %v, want %q", got, err, want)
				return
			}
			slowest.Store(max(slowest.Load(), int64(time.Since(began))))
		}
	}()
	has := func() bool {
		return s.number("SELECT count(*) FROM pg_attribute WHERE attrelid IN ('rate_limit_rules'::regclass, 'rate_limit_api_keys'::regclass) AND attname IN ('counter', 'tier')") == 2
	}
	for range 3 {
		s.after(time.Minute) // the next attempt is due
		refresh(t, p)
	}
	if has() {
		t.Error("the tables were changed while another session read them")
	}
	locked := slowest.Load()
	if err := reader.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for !has() && time.Since(began) < time.Minute { // the server may vacuum the tables
		s.after(time.Minute)
		refresh(t, p)
	}
	took := time.Since(began)
	stop()
	load.Wait()
	if !has() {
		t.Errorf("the tables were not changed: %s", s.reports())
	}
	t.Logf("upgraded %d keys in %s; the slowest of %d decisions took %s, and %s while the tables were locked", *upgradeKeys, took.Round(time.Millisecond), decisions,
		time.Duration(slowest.Load()).Round(time.Millisecond), time.Duration(locked).Round(time.Millisecond))
	if time.Duration(slowest.Load()) > most {
		t.Errorf("a decision took %s, want %s at most", time.Duration(slowest.Load()), most)
	}
	same(t, "afterwards", decided(t, p, "key-1", ""), "user-1 free rule/plan/per_hour=1000")
}
