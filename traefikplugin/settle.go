package traefikplugin

import (
	"fmt"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// settle sets what is to be settled after a request that passes. stored is whether the keys of the hits are as
// they are stored.
func settle(p *pendingRequest, hits []ratelimit.Hit, decisions []ratelimit.Decision, stored bool) {
	var said *policy.Verdict
	if p.asked {
		said = &p.verdict
	}
	f := p.hits
	p.settling = edge.NewSettling(f.store, hits, decisions, f.settles, said, stored, func(prefix string, outcome edge.SettleOutcome, err error) {
		if err != nil {
			f.logger.failure(fmt.Errorf("prefix %s: a request stays charged as estimated: %w", prefix, err))
		}
	})
}
