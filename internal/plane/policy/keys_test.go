package policy_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// The key that a proxy writes for a user is rate_limit_counter_key, and rate_limit_used finds the user by it.
func TestDatabaseReadsKeysAsProxiesWriteThem(t *testing.T) {
	s := sqltest.New(t)
	s.Exec("SELECT rate_limit_tier('free'); SELECT rate_limit_rule('r', per_hour => 10)")
	rules := []policy.Rule{{Name: "r", Limits: perHour(1)}}
	rapid.Check(t, func(r *rapid.T) {
		user := rapid.StringMatching(`(ip:|ip%3A)?[a%:é|23] ?[a%25032A:|]{0,5}z`).Draw(r, "user")
		v := mustDecide(t, rules, &policy.Facts{}, &policy.Identity{Known: true, User: user})
		tx, err := s.Conn.Begin(t.Context())
		if err != nil {
			r.Fatal(err)
		}
		defer func() { _ = tx.Rollback(t.Context()) }()
		var key string
		var quota int
		if err := tx.QueryRow(t.Context(), `WITH u AS (INSERT INTO rate_limit_users (user_id, tier)
				VALUES ($1, 'free') RETURNING user_id)
			INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events)
				SELECT 'r', 'per_hour', user_id, 7 FROM u RETURNING rate_limit_counter_key(user_id)`,
			user).Scan(&key); err != nil || key != v.Hits[0].Key {
			r.Fatalf("rate_limit_counter_key of %q: got %q, %v, want %q", user, key, err, v.Hits[0].Key)
		}
		if err := tx.QueryRow(t.Context(), `INSERT INTO rate_limit_ephemeral (prefix, key, count,
			window_start, expires_at) VALUES ('rule/r/per_hour', $1, 1, now(), now() + '1 h')
			RETURNING (SELECT 1)`, key).Scan(&quota); err != nil {
			r.Fatal(err)
		}
		err = tx.QueryRow(t.Context(), "SELECT quota::int FROM rate_limit_used").Scan(&quota)
		if err != nil || quota != 7 {
			r.Errorf("the quota of %q, by the key %q: got %d, %v, want that of its override, 7", user, key,
				quota, err)
		}
	})
}
