package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/admin/migrate"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// madeByDemo is the comment of the demo's rules and users, and the name of its API keys.
const madeByDemo = "made by make run"

// policySQL creates the missing tiers, rules, users and prices of the demo. The limits are small, so that a
// few requests show them. An answer of the upstream's model costs 0.001.
const policySQL = `INSERT INTO rate_limit_tiers (tier, rank) VALUES ('free', 1), ('pro', 2), ('enterprise', 3)
	ON CONFLICT DO NOTHING;
	SELECT rate_limit_rule(name, family => 'plan', priority => priority, tiers => ARRAY[name],
	algorithm => 'token_bucket', per_minute => amount, comment => '` + madeByDemo + `')
		FROM (VALUES ('free', 40, 5), ('pro', 30, 50), ('enterprise', 20, 5000), ('anonymous', 10, 2))
		AS plan(name, priority, amount)
		WHERE NOT EXISTS (SELECT FROM rate_limit_rules r WHERE r.name = plan.name);
	INSERT INTO rate_limit_users (user_id, tier, parent, comment)
		VALUES ('acme', 'pro', NULL, '` + madeByDemo + `'), ('ann', 'free', 'acme', '` + madeByDemo + `')
		ON CONFLICT (user_id) DO NOTHING;
	INSERT INTO rate_limit_prices (model, input, output, max_output, comment)
		VALUES ('demo', 4, 12, 100, '` + madeByDemo + `') ON CONFLICT DO NOTHING;
	SELECT rate_limit_rule('budget', family => 'plan', priority => 50, paths => '{/v1/*}',
		limits => '{day=0.01 money/1d calendar}', notify => '{80,100}', comment => '` + madeByDemo + `')
		WHERE NOT EXISTS (SELECT FROM rate_limit_rules WHERE name = 'budget');
	SELECT rate_limit_override(rule, name, '0.05', user_id => 'acme') FROM rate_limit_rule_limits l
		WHERE rule = 'budget' AND unit = 'money' AND NOT EXISTS (SELECT FROM rate_limit_overrides o
			WHERE o.rule = l.rule AND o.user_id = 'acme')`

// foreignSQL selects whether the database has rules or users that the demo did not create.
const foreignSQL = `SELECT EXISTS (SELECT FROM rate_limit_rules WHERE comment IS DISTINCT FROM '` +
	madeByDemo + `')
	OR EXISTS (SELECT FROM rate_limit_users WHERE comment IS DISTINCT FROM '` + madeByDemo + `')`

// makePolicy creates what is missing of the demo's policy: rules, the users ann and acme, and their API keys.
// It stores the keys in the state folder for the next start. isUsers says whether the database belongs to
// the user. In such a database, rules or users that the demo did not create are an error.
func makePolicy(ctx context.Context, dsn, state string, isUsers bool) (keys map[string]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	// The lock excludes other demos until conn is closed.
	if _, err := conn.Exec(ctx,
		"SELECT pg_advisory_lock(hashtextextended('pg-ratelimit make run', 0))"); err != nil {
		return nil, err
	}
	if _, err := migrate.Run(ctx, conn, 0); err != nil {
		return nil, err
	}
	var foreign bool
	if err := conn.QueryRow(ctx, foreignSQL).Scan(&foreign); err != nil {
		return nil, err
	}
	if isUsers && foreign {
		return nil, errors.New("the database has rules or users of its own, which stay as they are")
	}
	if _, err := conn.PgConn().Exec(ctx, policySQL).ReadAll(); err != nil {
		return nil, err
	}
	path := filepath.Join(state, "keys.json") // the database has digests only
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &keys)
	}
	if err != nil || keys == nil {
		keys = map[string]string{}
	}
	for _, user := range []string{"ann", "acme"} {
		var exists bool
		if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM rate_limit_api_keys
			WHERE digest = sha256(convert_to($1, 'UTF8')) AND user_id = $2)`, keys[user], user).
			Scan(&exists); err != nil {
			return nil, err
		}
		if exists {
			continue
		}
		key, err := policy.NewKey()
		if err != nil {
			return nil, err
		}
		if _, err := conn.Exec(ctx, `INSERT INTO rate_limit_api_keys (digest, hint, user_id, name)
			VALUES (sha256(convert_to($1, 'UTF8')), $2, $3, $4)`,
			key, policy.Hint(key), user, madeByDemo); err != nil {
			return nil, err
		}
		keys[user] = key
	}
	if text, err = json.Marshal(keys); err != nil {
		return nil, err
	}
	return keys, os.WriteFile(path, text, 0o600)
}

// policyWelcome explains the policy. Its arguments are the port, the keys of ann and acme, the text that sets
// the database for a command, and Caddy.
const policyWelcome = `
Below /api/ a policy in the database limits by API key. The user ann begins on the plan free, with 5
requests a minute, and acme on pro, with 50. What you change stays, also for the next run. Their keys:

  ANN=%[2]s
  ACME=%[3]s
  curl -i -H "X-Api-Key: $ANN" http://localhost:%[1]s/api/hello
  curl -i -H "X-Api-Key: $ACME" http://localhost:%[1]s/api/hello

Change the plan of ann, and send the request again:

  %[4]s%[5]s pg-ratelimit users set ann tier=pro
  curl -i -H "X-Api-Key: $ANN" http://localhost:%[1]s/api/hello

Below /v1/ a stub of a language model answers. An answer costs 0.001, by its price in the database, and ann
may spend 0.01 a day, so that the 11th request is refused. The invoice of acme, which is above ann and may
spend 0.05, has the other ten. Within 10 seconds, notices say that ann has reached 80 and 100 percent:

  CHAT=http://localhost:%[1]s/v1/chat/completions
  for i in $(seq 11); do curl -s -H "X-Api-Key: $ANN" -d '{"model": "demo"}' $CHAT; done | tail -n 2; echo
  %[4]s%[5]s pg-ratelimit invoice acme
  %[4]s%[5]s pg-ratelimit notices

docs/policy.md and docs/llm.md have more.
`
