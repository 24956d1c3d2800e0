package edge

import (
	"context"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// ProxyPolicy is the policy of a database at a proxy.
type ProxyPolicy struct{ live *policy.Policy }

// ProxyPolicyOptions are the settings of a ProxyPolicy.
type ProxyPolicyOptions struct {
	AutoMigrate bool           // create or upgrade the tables
	Remember    int            // see policy.Options
	OnError     func(error)    // is called with failures that no request sees
	Random      func() float64 // see policy.Settings
}

// OpenProxyPolicy returns the policy in the database of a store. OpenStore has returned store and db.
// OpenProxyPolicy does not touch the network yet, see Prepare.
func OpenProxyPolicy(store ratelimit.Store, db pgdb.DB, o ProxyPolicyOptions) (*ProxyPolicy, error) {
	if db == nil {
		return nil, PolicyNeedsPostgres()
	}
	live := policy.New(db, policy.Settings{
		Options:          policy.Options{Remember: o.Remember, SecretHeader: settings.CredentialHeader},
		DisableMigration: !o.AutoMigrate,
		OnApplied: func(seq int64, log string, problems []string) {
			if s := Postgres(store); s != nil {
				s.SetApplied(seq, log, problems)
			}
		}, OnError: o.OnError, Random: o.Random,
	})
	return &ProxyPolicy{live}, nil
}

// Prepare reads the rules and begins to ask for changes, in the background.
func (p *ProxyPolicy) Prepare() { p.live.Prepare() }

// Close ends the polls. The store and its driver stay open.
func (p *ProxyPolicy) Close() { p.live.Close() }

// Stats returns what is known of the policy.
func (p *ProxyPolicy) Stats() policy.Stats { return p.live.Stats() }

// Ask asks the policy about a request, see policy.Policy.Evaluate. The hits of o that are apart come
// last. With an error, o is the verdict without what is unknown: the request follows OnError, and if it may
// pass, the hits of o are still taken.
func (p *ProxyPolicy) Ask(ctx context.Context, timeout time.Duration, key, user string, f *policy.Facts, o *policy.Verdict) error {
	err := p.live.Evaluate(ctx, timeout, key, user, f, o)
	if !o.Simple && len(o.Hits) > 0 {
		ShadowsLast(o)
	}
	return err
}

// ShadowsLast moves the hits of shadow rules behind the others, and makes them hits apart. It
// is for a verdict of policy.Recall: Ask does the same. The list of marks belongs to the rules, so
// the verdict gets another list.
func ShadowsLast(o *policy.Verdict) {
	shadows := 0
	for _, m := range o.Marks {
		if m.Shadow {
			shadows++
		}
	}
	if shadows == 0 {
		return
	}
	enforced := 0
	shadow := len(o.Hits) - shadows
	hits := make([]ratelimit.Hit, len(o.Hits))
	marks := make([]*policy.Mark, len(o.Hits))
	for i, m := range o.Marks {
		at := enforced
		if m.Shadow {
			at = shadow
			shadow++
		} else {
			enforced++
		}
		hits[at] = o.Hits[i]
		hits[at].Apart = m.Shadow
		marks[at] = m
	}
	o.Hits = hits
	o.Marks = marks
}

// RefusalOf is the outcome of a request that the policy alone refuses.
func RefusalOf(o *policy.Verdict) respond.Outcome {
	return respond.Outcome{Status: o.Status, Reason: o.Reason, Message: o.Message, Wait: o.RetryAfter}
}
