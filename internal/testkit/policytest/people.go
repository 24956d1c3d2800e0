package policytest

import (
	"fmt"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// People is SQL that creates two users with different tiers.
const People = `
	INSERT INTO rate_limit_tiers (tier) VALUES ('free'), ('pro');
	INSERT INTO rate_limit_users (user_id, tier) VALUES ('alice', 'free'), ('bob', 'pro');`

// Open creates a database with all tables, runs the SQL, and returns the DSN. The database ends with the
// test.
func Open(t testing.TB, sql string) (dsn string) {
	t.Helper()
	dsn = cluster.Open(t, schema.File)
	cluster.Execute(t, dsn, sql)
	return dsn
}

// NewKey returns an API key, and SQL that inserts it for a user.
func NewKey(t testing.TB, id int, user string) (key, sql string) {
	t.Helper()
	key, err := policy.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key, fmt.Sprintf("INSERT INTO rate_limit_api_keys (id, digest, user_id) "+
		"VALUES (%d, '\\x%s', '%s');", id, policy.Digest(key), user)
}
