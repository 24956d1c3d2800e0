package edge

import (
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Set is the limits of a Site that are for a request, and what follows from them. It does not change.
type Set struct {
	Zones []*Zone // that are not off

	// One element for each of Zones.
	Hits    []ratelimit.Hit  // without what depends on the request
	Settles []*policy.Settle // nil if the cost is what was charged

	Audit history.Audit

	Varies  bool // costs of Hits depend on the request
	Shadow  bool // one of Hits is Apart
	Settled bool // one of Settles is not nil
	Flies   bool // one of Hits is on a limit InFlight
	Simple  bool // neither Shadow nor Settled, and the fields of a response are x alone
}

// mostSets bounds Site.sets: clients choose what their requests match.
const mostSets = 256

func newSet(s *Site, zones []*Zone) *Set {
	t := &Set{}
	if s.Policy != nil {
		t.Audit = s.audit
	}
	for _, z := range zones {
		if z.Mode == policy.Off {
			continue
		}
		t.Zones = append(t.Zones, z)
		t.Hits = append(t.Hits, z.Hit)
		t.Settles = append(t.Settles, z.Settle)
		t.Audit = MoreAudit(t.Audit, z.audit)
		t.Varies = t.Varies || z.cost != nil
		t.Shadow = t.Shadow || z.Hit.Apart
		t.Settled = t.Settled || z.Settle != nil
	}
	t.Flies = HasSlots(t.Hits)
	t.Simple = !t.Shadow && !t.Settled && !s.Fields.IETF
	return t
}

// match finds the limits that match a request. There is a Set for each combination of limits that was asked for: a
// few, because requests to one path have one.
func match(s *Site, q *Request) error {
	q.matched = q.matched[:0]
	for _, z := range s.Zones {
		matched := byte('1')
		if z.Match != nil {
			is, err := z.Match(q.HTTP)
			if err != nil {
				return err
			}
			if !is {
				matched = '0'
			}
		}
		q.matched = append(q.matched, matched)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.sets[string(q.matched)]
	if t == nil {
		var zones []*Zone
		for i := range q.matched {
			if q.matched[i] == '1' {
				zones = append(zones, s.Zones[i])
			}
		}
		t = newSet(s, zones)
		if len(s.sets) >= mostSets {
			s.sets = map[string]*Set{}
		}
		s.sets[string(q.matched)] = t
	}
	q.Set = t
	return nil
}

// isExempt reports whether the limits of the configuration are not for a request. An assumed address exempts no request.
func isExempt(s *Site, q *Request) bool {
	address, assumed := s.Address(q.HTTP)
	return !assumed && s.IsExempt(address)
}
