package policy

import (
	"context"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Poller polls as a Policy does, and returns the changes.
type Poller struct{ policy *Policy }

// NewPoller returns a Poller on db.
func NewPoller(db pgdb.DB) *Poller { return &Poller{New(db, Settings{})} }

// Poll returns the changed users, or reports that everything may have changed.
func (p *Poller) Poll(ctx context.Context) (users []string, everything bool, err error) {
	p.policy.due = changes{}
	err = p.policy.findChanges(ctx)
	return p.policy.due.users, p.policy.due.identities, err
}

// EvictAll evicts all identities.
func (c *IdentityCache) EvictAll() { c.evict(&changes{identities: true}) }

// EvictUser evicts a user and the user's keys.
func (c *IdentityCache) EvictUser(user string) { c.evict(&changes{users: []string{user}}) }

// EvictKey evicts an API key.
func (c *IdentityCache) EvictKey(digest string) { c.evict(&changes{digests: []string{digest}}) }

// DecodeRules decodes rules and overrides from rows of the database.
func DecodeRules(texts []string) ([]Rule, []Override, error) {
	d, err := decodePolicy(texts)
	if err != nil {
		return nil, nil, err
	}
	return d.rules, d.overrides, nil
}

// EvaluateUnknown is evaluateUnknown.
var EvaluateUnknown = evaluateUnknown

// Statements holds the statements that read several tables, with their arguments.
var Statements = map[string][]any{effectiveRulesSQL: nil, bansSQL: nil, bannedKeysSQL: nil,
	identitiesSQL: {[]string{}, []string{}}}
