package policytest

import (
	"fmt"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// People is SQL that creates two users with different tiers.
const People = `
	INSERT INTO rate_limit_tiers (tier) VALUES ('free'), ('pro');
	INSERT INTO rate_limit_users (user_id, tier) VALUES ('alice', 'free'), ('bob', 'pro');`

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
