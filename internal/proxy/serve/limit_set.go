package serve

import (
	"net/http"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// LimitSet is a combination of limits of a Site that apply together to a request. It is immutable.
type LimitSet struct {
	Zones []*Zone // excludes zones that are off

	// Hits and Terms have one element for each of Zones.
	Hits  []ratelimit.Hit // templates: Fill sets the keys, and costs if Varies
	Terms []*policy.Terms

	Audit    option.Audit
	Endpoint string // the first Zone.Endpoint that is not ""

	Varies         bool // some costs of Hits depend on the request
	HasIndependent bool // one of Hits is Independent
	Settles        bool // one of Terms has a CostSource
	EnforcesTokens bool // a limit of tokens that is enforced applies
	HasHolds       bool // one of Hits is on a limit that is in_flight or reserves
	AwaitsDisk     bool // a commit of one of Hits may wait for a synchronous standby
	Simple         bool // only X fields, and no HasIndependent, Settles, HasHolds, Zone.Hidden or Site.Hits
}

// maxSets bounds Site.sets, because clients choose which limits match their requests.
const maxSets = 256

func newLimitSet(s *Site, zones []*Zone) *LimitSet {
	set := &LimitSet{Simple: s.Fields.X && !s.Fields.IETF && s.Hits == nil}
	if s.Policy != nil {
		set.Audit = s.audit
	}
	for _, z := range zones {
		if z.Mode == option.Off {
			continue
		}
		if set.Endpoint == "" {
			set.Endpoint = z.Endpoint
		}
		set.Zones = append(set.Zones, z)
		set.Hits = append(set.Hits, z.Hit)
		set.Terms = append(set.Terms, &policy.Terms{Status: http.StatusTooManyRequests, Quota: z.Limit.Events,
			CostSource: z.CostSource, Shadow: z.Hit.Independent, Hidden: z.Hidden})
		set.Audit = option.MaxAudit(set.Audit, z.audit)
		set.Varies = set.Varies || z.cost != nil || z.CostSource.CountsTokens()
		set.EnforcesTokens = set.EnforcesTokens || z.CostSource.CountsTokens() && !z.Hit.Independent
		set.HasIndependent = set.HasIndependent || z.Hit.Independent
		set.Settles = set.Settles || z.CostSource != nil
		set.Simple = set.Simple && !z.Hidden
		set.AwaitsDisk = set.AwaitsDisk || z.Hit.Limit.AwaitsDisk()
	}
	set.HasHolds = hasHolds(set.Hits)
	set.Simple = set.Simple && !set.HasIndependent && !set.Settles && !set.HasHolds
	return set
}

// match sets q.Limits to the limits that match q, and q.matched to a '0' or '1' for each zone. Site.sets
// caches a LimitSet for each combination. There are few combinations, because requests to one path usually
// match the same limits.
func match(s *Site, q *Request) error {
	q.matched = q.matched[:0]
	for _, z := range s.Zones {
		matched := byte('1')
		if z.Match != nil {
			matches, err := z.Match(q.HTTP)
			if err != nil {
				return err
			}
			if !matches {
				matched = '0'
			}
		}
		if matched == '1' && z.Mode != option.Off &&
			(z.WithoutKey == option.WithoutSkip || z.WithoutKey == option.WithoutRefuse) {
			skips, refuses := withoutKey(z, q)
			if refuses {
				q.Outcome = refusal(http.StatusUnauthorized, policy.NoKey)
			}
			if skips {
				matched = '0'
			}
		}
		if z.CostSource != nil && z.CostSource.Unit != "" && matched == '1' &&
			q.HTTP.Method != http.MethodPost && policy.FreeOfTokens(q.HTTP.Method) {
			matched = '0'
		}
		q.matched = append(q.matched, matched)
	}
	sets := s.sets.Load().(map[string]*LimitSet)
	q.Limits = sets[string(q.matched)]
	if q.Limits == nil {
		q.Limits = addLimitSet(s, q.matched)
	}
	return nil
}

// addLimitSet adds the set of a combination to Site.sets, and returns it.
func addLimitSet(s *Site, matched []byte) *LimitSet {
	var zones []*Zone
	for i := range matched {
		if matched[i] == '1' {
			zones = append(zones, s.Zones[i])
		}
	}
	set := newLimitSet(s, zones)
	s.mu.Lock()
	defer s.mu.Unlock()
	sets := map[string]*LimitSet{string(matched): set}
	if old := s.sets.Load().(map[string]*LimitSet); len(old) < maxSets {
		for name, one := range old {
			sets[name] = one
		}
	}
	s.sets.Store(sets)
	return set
}
