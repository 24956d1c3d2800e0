package policy

import (
	"context"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Poller polls as a Policy does, and returns the changes.
type Poller struct{ poller }

// NewPoller returns a Poller on db.
func NewPoller(db pgdb.DB) *Poller { return &Poller{poller{db: db}} }

// Poll returns the changed users, or reports that everything may have changed.
func (p *Poller) Poll(ctx context.Context) (users []string, everything bool, err error) {
	found, polled, err := p.poll(ctx)
	p.polled = polled
	return found.users, found.identities, err
}

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
