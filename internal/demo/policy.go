package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// madeByDemo is the comment of the rules and users, and the name of the API keys, that the demo
// makes. By it the demo knows them again at its next start.
const madeByDemo = "made by make run"

// demoRules are the plans: what a user of each tier may do in a minute. They are small, so that
// a few requests show them.
var demoRules = []struct {
	name     string
	settings []string
}{
	{"free", []string{"family=plan", "priority=40", "tiers=free", "algorithm=token_bucket", "per_minute=5"}},
	{"pro", []string{"family=plan", "priority=30", "tiers=pro", "algorithm=token_bucket", "per_minute=50"}},
	{"enterprise", []string{"family=plan", "priority=20", "tiers=enterprise", "algorithm=token_bucket", "per_minute=5000"}},
	{"anonymous", []string{"family=plan", "priority=10", "tiers=anonymous", "algorithm=token_bucket", "per_minute=2"}},
}

// demoKeys are the API keys of the users ann, on the tier free, and acme, on pro.
type demoKeys struct{ ann, acme string }

// errOwnPolicy is of a database in which somebody else has a policy.
var errOwnPolicy = fmt.Errorf("the database has rules or users of its own, which stay as they are")

// makePolicy makes the policy of the demo, and new keys. Of an earlier demo it restores the rules
// and users, and deletes the keys. own says that the database is not the demo's.
func makePolicy(ctx context.Context, dsn string, own bool) (demoKeys, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return demoKeys{}, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	// One demo at a time, until conn is closed.
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended('pg-ratelimit make run', 0))"); err != nil {
		return demoKeys{}, err
	}
	db, err := admin.Open(ctx, dsn)
	if err != nil {
		return demoKeys{}, err
	}
	defer db.Close()
	if _, err := db.Migrate(ctx); err != nil {
		return demoKeys{}, err
	}
	if own {
		var others bool
		err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM rate_limit_rules WHERE comment IS DISTINCT FROM $1)
			OR EXISTS (SELECT FROM rate_limit_users WHERE comment IS DISTINCT FROM $1)`, madeByDemo).Scan(&others)
		if err != nil {
			return demoKeys{}, err
		}
		if others {
			return demoKeys{}, errOwnPolicy
		}
	}
	if _, err := conn.Exec(ctx, "INSERT INTO rate_limit_tiers (tier, rank) VALUES ('free', 1), ('pro', 2), ('enterprise', 3) ON CONFLICT DO NOTHING"); err != nil {
		return demoKeys{}, err
	}
	for _, r := range demoRules {
		if _, err := db.SetRule(ctx, r.name, append([]string{"mode=enforce", "comment=" + madeByDemo}, r.settings...)); err != nil {
			return demoKeys{}, err
		}
	}
	if _, err := conn.Exec(ctx, "DELETE FROM rate_limit_api_keys WHERE name = $1", madeByDemo); err != nil {
		return demoKeys{}, err
	}
	var keys demoKeys
	for _, u := range []struct {
		name, tier string
		key        *string
	}{{"ann", "free", &keys.ann}, {"acme", "pro", &keys.acme}} {
		if _, err := db.SetUser(ctx, u.name, []string{"tier=" + u.tier, "tier_until=", "comment=" + madeByDemo}); err != nil {
			return demoKeys{}, err
		}
		key, err := db.CreateKey(ctx, u.name, madeByDemo, "", time.Time{})
		if err != nil {
			return demoKeys{}, err
		}
		*u.key = key.Key
	}
	return keys, nil
}

// policyWelcome shows the policy: with the port, the keys, and how a command finds the database.
const policyWelcome = `
Below /api/ a policy in the database limits by API key. The user ann is on the plan free, with 5
requests a minute, and acme is on pro, with 50. These are their keys:

  ANN=%[2]s
  ACME=%[3]s
  curl -i -H "X-Api-Key: $ANN" http://localhost:%[1]s/api/hello
  curl -i -H "X-Api-Key: $ACME" http://localhost:%[1]s/api/hello

Change the plan of ann, and ask again:

  %[4]s%[5]s pg-ratelimit users set ann tier=pro
  curl -i -H "X-Api-Key: $ANN" http://localhost:%[1]s/api/hello

docs/policy.md has more.
`
