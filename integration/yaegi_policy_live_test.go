package integration

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/traefik/yaegi/interp"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// livePolicy is a program that decides by the rules of a database.
const livePolicy = `
package live

import (
	"context"
	"fmt"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/pgwire"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

func Open(dsn string) (decide func(key, user string) string, refresh func() string) {
	db, err := pgwire.Open(dsn, pgwire.Options{})
	if err != nil {
		panic(err)
	}
	p, err := policy.New(db, policy.Settings{Refresh: -1})
	if err != nil {
		panic(err)
	}
	refresh = func() string { return fmt.Sprint(p.Refresh(context.Background())) }
	decide = func(key, user string) string {
		facts := policy.Facts{Tier: "anonymous", RejectUnknown: true, Method: "GET", Host: "a", Path: "/"}
		o := &policy.Verdict{}
		if err := p.Evaluate(context.Background(), time.Minute, key, user, &facts, o); err != nil {
			return err.Error()
		}
		text := fmt.Sprint(o.User, " ", o.Tier, " ", o.Status)
		for i := range o.Hits {
			text += fmt.Sprint(" ", o.Hits[i].Limit.Prefix, "=", o.Hits[i].Limit.Events)
		}
		return text
	}
	return decide, refresh
}
`

// Interpreted, a policy obeys changes as it does compiled.
func TestAnInterpretedPolicyIsLive(t *testing.T) {
	t.Parallel()
	dsn := cluster.Open(t)
	i := newInterpreter(t, interp.Options{Env: os.Environ()})
	if _, err := i.Eval(livePolicy); err != nil {
		t.Fatal(err)
	}
	v, err := i.Eval("live.Open")
	if err != nil {
		t.Fatal(err)
	}
	open, ok := v.Interface().(func(string) (func(string, string) string, func() string))
	if !ok {
		t.Fatalf("live.Open is a %s", v.Type())
	}
	decide, refresh := open(dsn)
	ctx := context.Background()
	if got := refresh(); got != "<nil>" { // which creates the tables
		t.Fatal(got)
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	digest := sha256.Sum256([]byte("key"))
	for _, step := range []struct{ sql, want string }{
		{fmt.Sprintf(`INSERT INTO rate_limit_tiers (tier) VALUES ('free'), ('pro'); INSERT INTO rate_limit_users (user_id, tier, period_start) VALUES ('ann', 'free', '2026-01-31');
			INSERT INTO rate_limit_api_keys (digest, user_id) VALUES ('\x%x', 'ann'); SELECT rate_limit_rule('plan', tiers => '{free}', per_hour => 100, networks => NULL)`, digest), "ann free 0 rule/plan/per_hour=100"},
		{"INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events) VALUES ('plan', 'per_hour', 'ann', 7)", "ann free 0 rule/plan/per_hour=7"},
		{"SELECT rate_limit_rule('month', per_month => 5, valid => '[2020-01-01,)')", "ann free 0 rule/month/per_month=5 rule/plan/per_hour=7"},
		{"DELETE FROM rate_limit_rules WHERE name = 'month'; UPDATE rate_limit_users SET tier = 'pro'", "ann pro 0"},
		{"INSERT INTO rate_limit_bans (user_id) VALUES ('ann'); INSERT INTO rate_limit_bans (network) VALUES ('192.0.2.0/24')", "ann pro 403"},
		{"UPDATE rate_limit_api_keys SET revoked_at = now() - interval '1 s'", " anonymous 401"},
		{"TRUNCATE rate_limit_users CASCADE", " anonymous 401"},
	} {
		if _, err := conn.PgConn().Exec(ctx, step.sql).ReadAll(); err != nil {
			t.Fatal(err)
		}
		if got := refresh(); got != "<nil>" {
			t.Fatal(got)
		}
		if got := decide("key", ""); got != step.want {
			t.Errorf("after %s: %q, want %q", step.sql, got, step.want)
		}
	}
}
