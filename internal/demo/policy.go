package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// madeByDemo is the comment of the rules and users, and the name of the API keys, that the demo
// makes. By it the demo knows them again at its next start.
const madeByDemo = "made by make run"

// policySQL makes tiers, rules and users, or makes them again what they were. The limits are small, so that a few
// requests show them.
const policySQL = `INSERT INTO rate_limit_tiers (tier, rank) VALUES ('free', 1), ('pro', 2), ('enterprise', 3) ON CONFLICT DO NOTHING;
	SELECT rate_limit_rule(name, family => 'plan', priority => priority, tiers => ARRAY[name], algorithm => 'token_bucket', per_minute => amount, mode => 'enforce', comment => '` + madeByDemo + `')
		FROM (VALUES ('free', 40, 5), ('pro', 30, 50), ('enterprise', 20, 5000), ('anonymous', 10, 2)) AS plan(name, priority, amount);
	DELETE FROM rate_limit_api_keys WHERE name = '` + madeByDemo + `';
	INSERT INTO rate_limit_users (user_id, tier, comment) VALUES ('ann', 'free', '` + madeByDemo + `'), ('acme', 'pro', '` + madeByDemo + `')
		ON CONFLICT (user_id) DO UPDATE SET tier = excluded.tier, tier_until = 'infinity'`

// ownSQL is whether somebody else has a policy in the database.
const ownSQL = `SELECT EXISTS (SELECT FROM rate_limit_rules WHERE comment IS DISTINCT FROM '` + madeByDemo + `')
	OR EXISTS (SELECT FROM rate_limit_users WHERE comment IS DISTINCT FROM '` + madeByDemo + `')`

// makePolicy makes the policy of the demo, and new keys of the users ann, on the tier free, and acme, on pro. Of an
// earlier demo it restores the rules and users, and deletes the keys. own says that the database is not the demo's.
func makePolicy(ctx context.Context, dsn string, own bool) (keys map[string]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	// One demo at a time, until conn is closed.
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended('pg-ratelimit make run', 0))"); err != nil {
		return nil, err
	}
	db, err := admin.Open(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	if _, err := db.Migrate(ctx); err != nil {
		return nil, err
	}
	var others bool
	if err := conn.QueryRow(ctx, ownSQL).Scan(&others); err != nil {
		return nil, err
	}
	if own && others {
		return nil, errors.New("the database has rules or users of its own, which stay as they are")
	}
	if _, err := conn.PgConn().Exec(ctx, policySQL).ReadAll(); err != nil {
		return nil, err
	}
	keys = map[string]string{}
	for _, user := range []string{"ann", "acme"} {
		key, err := db.CreateKey(ctx, user, madeByDemo, "", time.Time{})
		if err != nil {
			return nil, err
		}
		keys[user] = key.Key
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
