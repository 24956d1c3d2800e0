package admin_test

import (
	"context"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// The view says that a bucket is full again when the store says so, and not when its row ends.
func TestABucketIsFullAgainWhenTheStoreSaysSo(t *testing.T) {
	ctx := context.Background()
	p := newPast(t, 0)
	p.exec("SELECT rate_limit_rule('r', count_by => '{user}', algorithm => 'token_bucket', per_minute => 20)")
	for _, burst := range []string{"NULL", "50", "7"} {
		for _, tokens := range []string{"0", "3", "-2"} {
			p.exec("UPDATE rate_limit_rule_limits SET burst = " + burst)
			p.exec("DELETE FROM rate_limit_ephemeral")
			p.exec("INSERT INTO rate_limit_ephemeral (prefix, key, tokens, last_refill, expires_at) VALUES ('rule/r/per_minute', 'acme', " + tokens + ", now() - interval '1 s', now() + interval '5 min')")
			used, err := p.db.Top(ctx, "", 10)
			if err != nil || len(used) != 1 || used[0].Resets == nil {
				t.Fatalf("burst %s, tokens %s: %+v, %v", burst, tokens, used, err)
			}
			e, err := p.db.Explain(ctx, &admin.Request{User: "acme", Tier: "anonymous", Method: "GET", Path: "/"})
			if err != nil || len(e.Limits) != 1 || e.Limits[0].Reset == nil {
				t.Fatalf("burst %s, tokens %s: %+v, %v", burst, tokens, e, err)
			}
			if late := used[0].Resets.Sub(*e.Limits[0].Reset); late.Abs() > 5*time.Millisecond {
				t.Errorf("burst %s, tokens %s: the view has %s, and the store %s", burst, tokens, used[0].Resets, e.Limits[0].Reset)
			}
		}
	}
}
