package traefikplugin

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// sharedPolicy is a policy that middlewares with the same settings share. It is guarded by the
// registry's mutex.
type sharedPolicy struct {
	policy *edge.Policy
	users  int
}

// remembered is for how many combinations of tier, method, host and path a policy remembers
// which rules match: an interpreter takes long to find out.
const remembered = 16384

// acquirePolicy returns the policy in the database of a pool, and opens it if there is none.
// It does not wait for the network. One releasePolicy must follow each acquirePolicy.
func (r *registry) acquirePolicy(p *pool, s edge.PolicySettings) (*edge.Policy, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	used := p.policies[s]
	if used == nil {
		opened, err := edge.OpenPolicy(p.store, p.db, s, edge.PolicyOptions{
			Node: p.settings.NodeNameOf(proxyKind), AutoMigrate: p.settings.AutoMigrate, Remember: remembered, OnError: p.logger.failure,
		})
		if err != nil {
			return nil, err
		}
		opened.Prepare()
		used = &sharedPolicy{policy: opened}
		p.policies[s] = used
	}
	used.users++
	return used.policy, nil
}

// releasePolicy ends the use of a policy. Like a pool it stays open for a while, for the
// middlewares of a reload.
func (r *registry) releasePolicy(p *pool, s edge.PolicySettings) {
	r.mu.Lock()
	defer r.mu.Unlock()
	used := p.policies[s]
	used.users--
	if used.users > 0 {
		return
	}
	time.AfterFunc(r.delay+p.longest, func() {
		defer p.logger.recovered()
		r.mu.Lock()
		unused := used.users == 0 && p.policies[s] == used
		if unused {
			delete(p.policies, s)
		}
		r.mu.Unlock()
		if unused {
			used.policy.Close()
		}
	})
}
