package policy

import (
	"context"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Poller polls as a Policy does, and shows what it finds.
type Poller struct{ poller }

// NewPoller returns a poller.
func NewPoller(db pgdb.DB) *Poller { return &Poller{poller{db: db}} }

// Poll returns the users of the changes that have become visible, and whether there were
// too many to name.
func (p *Poller) Poll(ctx context.Context) (users []string, everything bool, err error) {
	found, polled, err := p.poll(ctx)
	p.polled = polled
	return found.users, found.identities, err
}

// DecodeRules returns the rules and overrides in rows of the database.
func DecodeRules(texts []string) ([]Rule, []Override, error) {
	d, err := decodePolicy(texts)
	if err != nil {
		return nil, nil, err
	}
	return d.rules, d.overrides, nil
}

// EvaluateUnknown does the work of Policy.Evaluate after a look-up failed.
var EvaluateUnknown = evaluateUnknown

// Statements are those that read the rows of several tables, with their arguments.
var Statements = map[string][]any{effectiveRulesSQL: nil, bansSQL: nil, bannedKeysSQL: nil,
	identitiesSQL: {[]string{}, []string{}}}
