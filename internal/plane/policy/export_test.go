package policy

import (
	"context"
	"time"

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

// DecodeRules decodes rules and overrides from rows of the database.
func DecodeRules(texts []string) ([]Rule, []Override, error) {
	var columns [][]byte
	for _, text := range texts {
		columns = append(columns, []byte(text))
	}
	d, err := decodePolicy(columns)
	if err != nil {
		return nil, nil, err
	}
	return d.rules, d.overrides, nil
}

// EvaluateUnknown evaluates a request without a look-up of its sender.
func EvaluateUnknown(s *Snapshot, f *Facts, id *Identity, now time.Time, v *Verdict) {
	EvaluateIdentity(s, f, &Identity{Digest: id.Digest, User: id.User, unread: true}, now, v)
}

// Statements holds the statements that read several tables, with their arguments.
var Statements = map[string][]any{effectiveRulesSQL: nil, bansSQL: nil, bannedKeysSQL: nil,
	identitiesSQL: {[]string{}, []string{}}}
