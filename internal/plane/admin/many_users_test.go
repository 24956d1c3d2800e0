package admin_test

import (
	"context"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// What lists of users and keys cost must grow with the list, and not with its product with the counters.
func TestListsOfManyUsers(t *testing.T) {
	ctx := context.Background()
	dsn := migrated(t)
	cluster.Execute(t, dsn, `INSERT INTO rate_limit_tiers (tier) VALUES ('free');
		SELECT rate_limit_rule('plan', per_hour => 10), rate_limit_rule('each_key', count_by => '{key}', per_hour => 10);
		INSERT INTO rate_limit_users (user_id, tier) SELECT 'u' || i, 'free' FROM generate_series(1, 5000) i;
		INSERT INTO rate_limit_api_keys (id, digest, user_id) SELECT i, sha256(i::text::bytea), 'u' || i FROM generate_series(1, 5000) i;
		INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events) SELECT 'plan', 'per_hour', 'u' || i, 20 FROM generate_series(1, 5000) i;
		INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at)
			SELECT 'rule/plan/per_hour', 'u' || i, 5, now(), now() + interval '2 h' FROM generate_series(1, 5000) i
			UNION ALL SELECT 'rule/each_key/per_hour', i::text, 5, now(), now() + interval '2 h' FROM generate_series(1, 5000) i;
		INSERT INTO rate_limit_usage (day, user_id, key_id, requests, last_request) SELECT current_date, 'u' || i, i, 5, now() FROM generate_series(1, 5000) i;
		ANALYZE`)
	db, err := admin.Open(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	if _, err := db.Conn().Exec(ctx, "SET statement_timeout = '20s'"); err != nil {
		t.Fatal(err)
	}

	users, err := db.Users(ctx, "", 5000)
	if err != nil || len(users) != 5000 || users[7].Recent == nil || users[7].Recent.Today != 5 || users[7].Recent.Resets == nil {
		t.Errorf("the list has %d users, %v", len(users), err)
	}
	keys, err := db.KeysWithUsage(ctx, "")
	if err != nil || len(keys) != 5000 || keys[7].Recent == nil || keys[7].Recent.Today != 5 || keys[7].Recent.Resets == nil {
		t.Errorf("the list has %d keys, %v", len(keys), err)
	}
	user, err := db.User(ctx, "u8")
	if err != nil || len(user.Usage) != 2 || *user.Usage[1].Quota != 20 || *user.Usage[0].Quota != 10 {
		t.Errorf("the user has %+v, %v", user.Usage, err)
	}
	top, err := db.Top(ctx, "", 10)
	if err != nil || len(top) != 10 || *top[0].Percent != 50 {
		t.Errorf("the counters are %+v, %v", top, err)
	}
}
