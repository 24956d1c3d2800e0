package admin_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// The view says of a request that passes what the store says of it, and not when the row ends.
func TestACounterResetsWhenTheStoreSaysSo(t *testing.T) {
	ctx := context.Background()
	p := newPast(t, 0)
	states := map[string][]string{
		"token_bucket":   {"(tokens, last_refill) VALUES (1, now() - interval '1 s')", "(tokens, last_refill) VALUES (3, now() - interval '1 s')"},
		"gcra":           {"(last_refill) VALUES (now() + interval '6 s')"},
		"sliding_log":    {"(hits) VALUES (ARRAY[now() - interval '61 s', now() - interval '9 s', now() - interval '2 s'])"},
		"sliding_window": {"(count, prev_count, window_start) VALUES (2, 1, now() - interval '9 s')", "(count, window_start) VALUES (2, now() - interval '69 s')"},
	}
	for _, kind := range []string{"token_bucket", "token_bucket 50", "token_bucket 7", "gcra", "sliding_log", "sliding_window"} {
		algorithm, burst, _ := strings.Cut(kind, " ")
		p.exec("DELETE FROM rate_limit_rules")
		p.exec("SELECT rate_limit_rule('r', count_by => '{user}', algorithm => '" + algorithm + "', per_minute => 20)")
		if burst != "" {
			p.exec("UPDATE rate_limit_rule_limits SET burst = " + burst)
		}
		for _, state := range states[algorithm] {
			p.exec("DELETE FROM rate_limit_ephemeral")
			p.exec("INSERT INTO rate_limit_ephemeral (prefix, key, expires_at, " + strings.Replace(state[1:], "VALUES (", "VALUES ('rule/r/per_minute', 'acme', now() + interval '5 min', ", 1))
			used, err := p.db.Top(ctx, "", 10)
			if err != nil || len(used) != 1 || used[0].Resets == nil {
				t.Fatalf("%s, %s: %+v, %v", kind, state, used, err)
			}
			e, err := p.db.Explain(ctx, &admin.Request{User: "acme", Tier: "anonymous", Method: "GET", Path: "/"})
			if err != nil || len(e.Limits) != 1 || e.Limits[0].Reset == nil {
				t.Fatalf("%s, %s: %+v, %v", kind, state, e, err)
			}
			if late := used[0].Resets.Sub(*e.Limits[0].Reset); late.Abs() > 5*time.Millisecond {
				t.Errorf("%s, %s: the view has %s, and the store %s", kind, state, used[0].Resets, e.Limits[0].Reset)
			}
		}
	}
}

// What the view says is used is what the store has not left: of 9.93 requests that are used of 10, none is left.
func TestUsedAndLeftAddUpToTheQuota(t *testing.T) {
	ctx := context.Background()
	p := newPast(t, 0)
	for algorithm, state := range map[string]string{
		"sliding_window": "(count, prev_count, window_start, expires_at) VALUES (5, 10, now() - interval '34 s', now() + interval '5 min')",
		"token_bucket":   "(tokens, last_refill, expires_at) VALUES (0, now() - interval '1 s', now() + interval '5 min')",
		"gcra":           "(last_refill, expires_at) VALUES (now() + interval '56 s', now() + interval '56 s')",
	} {
		p.exec("DELETE FROM rate_limit_rules; DELETE FROM rate_limit_ephemeral")
		p.exec("SELECT rate_limit_rule('r', count_by => '{user}', algorithm => '" + algorithm + "', per_minute => 10)")
		p.exec("INSERT INTO rate_limit_ephemeral (prefix, key, " + strings.Replace(strings.TrimPrefix(state, "("), "VALUES (", "VALUES ('rule/r/per_minute', 'acme', ", 1))
		used, err := p.db.Top(ctx, "", 10)
		if err != nil || len(used) != 1 {
			t.Fatalf("%s: %+v, %v", algorithm, used, err)
		}
		e, err := p.db.Explain(ctx, &admin.Request{User: "acme", Tier: "anonymous", Method: "GET", Path: "/"})
		if err != nil || len(e.Limits) != 1 {
			t.Fatalf("%s: %+v, %v", algorithm, e, err)
		}
		if used[0].Used != 10 || *e.Limits[0].Left != 0 || *used[0].Percent != 100 {
			t.Errorf("%s: %d are used, which is %v %%, and %d are left", algorithm, used[0].Used, *used[0].Percent, *e.Limits[0].Left)
		}
	}
}
