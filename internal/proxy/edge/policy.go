package edge

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/hooks"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// Policy is the policy of a database at a proxy, and the bans that the proxy makes.
type Policy struct {
	live *policy.Policy
	bans *bans
}

// PolicyOptions are what a proxy adds to PolicySettings.
type PolicyOptions struct {
	Node        string       // the name of this proxy in the bans that it makes
	AutoMigrate bool         // create or upgrade the tables
	Remember    int          // see policy.Options
	Saved       []byte       // what Save was called with last, or nil
	Save        func([]byte) // keeps the last good rules; nil does not
	OnError     func(error)  // is called with failures that no request sees
}

// OpenPolicy returns the policy in the database of a store. OpenStore has returned store and db.
// OpenPolicy does not touch the network yet, see Prepare.
func OpenPolicy(store ratelimit.Store, db postgres.DB, s PolicySettings, o PolicyOptions) (*Policy, error) {
	if db == nil {
		return nil, PolicyNeedsPostgres()
	}
	live, err := policy.New(db, policy.Settings{
		Options: policy.Options{Remember: o.Remember, SecretHeader: CredentialHeader},
		Refresh: s.Refresh, MaxIdentities: s.MaxIdentities, DisableMigration: !o.AutoMigrate,
		OnApplied: func(seq int64, log string, problems []string) { hooks.NoteApplied(store, seq, log, problems) }, Saved: o.Saved, OnLoad: o.Save, OnError: o.OnError,
	})
	if err != nil {
		return nil, err
	}
	return &Policy{live, newBans(store, db, live, o.Node, o.OnError)}, nil
}

// Live is the policy itself, for policy.Recall.
func (p *Policy) Live() *policy.Policy { return p.live }

// Prepare reads the rules and begins to ask for changes, in the background.
func (p *Policy) Prepare() { p.live.Prepare() }

// Close ends the polls. The store and its driver stay open.
func (p *Policy) Close() { p.live.Close() }

// Stats returns what is known of the policy.
func (p *Policy) Stats() policy.Stats { return p.live.Stats() }

// Apply asks the policy about a request, see policy.Policy.Decide. The hits of o that are
// apart come last. With an error, o is what is known nevertheless: the request follows OnError, and
// if it may pass, the hits of o are still taken.
func Apply(ctx context.Context, p *Policy, timeout time.Duration, key, user string, f *policy.Facts, o *policy.Outcome) error {
	err := p.live.Decide(ctx, timeout, key, user, f, o)
	if !o.Simple && len(o.Hits) > 0 {
		ShadowsLast(o)
	}
	return err
}

// ShadowsLast moves the hits of shadow rules behind the others, and sets them apart. It is for
// an outcome of policy.Recall: Apply does the same. The list of marks belongs to the rules, so
// the outcome gets another list.
func ShadowsLast(o *policy.Outcome) {
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
func RefusalOf(o *policy.Outcome) Outcome {
	return Outcome{Status: o.Status, Reason: o.Reason, Message: o.Message, Wait: o.RetryAfter}
}

// Judge is the outcome of a request with these decisions. Those on the hits of the policy
// come last. A decision on a limit with overage becomes one on its quota.
func Judge(decisions []ratelimit.Decision, o *policy.Outcome) Outcome {
	first := len(decisions) - len(o.Marks)
	enforced := len(decisions)
	overage := int64(0)
	for i := len(o.Marks) - 1; i >= 0; i-- {
		m := o.Marks[i]
		if m.Overage {
			if beyond := countQuota(&decisions[first+i], m.Quota); beyond > overage && !m.Shadow {
				overage = beyond
			}
		}
		if m.Shadow {
			enforced = first + i
		}
	}
	out := OutcomeOf(decisions[:enforced])
	if out.Status == 0 {
		out.Overage = overage
	} else if out.Hit >= first {
		m := o.Marks[out.Hit-first]
		out.Status = m.Status
		out.Message = m.Message
		out.Wait = m.RetryAfter
	}
	return out
}

// countQuota makes a decision on a limit with overage one on its quota, and returns how much is
// used beyond the quota.
func countQuota(d *ratelimit.Decision, quota int64) int64 {
	beyond := int64(0)
	used := d.Limit - d.Remaining
	d.Limit = quota
	if d.Source == ratelimit.Undecided {
		return 0
	}
	d.Remaining = quota - used
	if d.Remaining < 0 {
		beyond = -d.Remaining
		d.Remaining = 0
	}
	return beyond
}

// DecidePolicy is Decide for a request with a policy. The last hits of the request are those of
// o.
func DecidePolicy(ctx context.Context, d *Decider, hits []ratelimit.Hit, decisions []ratelimit.Decision, o *policy.Outcome) Outcome {
	if len(hits) == 0 {
		return Outcome{}
	}
	if Paused(d.Store) {
		return PausedOutcome()
	}
	if err := d.Store.Take(ctx, d.Timeout, hits, decisions); err != nil {
		return NoDecision(d.OnError, err)
	}
	return Judge(decisions, o)
}

// AmbiguousPath is the outcome of a request for policy.ErrAmbiguousPath.
func AmbiguousPath() Outcome {
	return Outcome{Status: http.StatusBadRequest, Reason: policy.AmbiguousPath}
}

// Sender is the sender of a request as bans see it: the API key, or else the user, or else the
// network of the address.
type Sender struct {
	KeyID   int64
	User    string
	Address netip.Addr
}
