package serve

import (
	"net/netip"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// LimitSet is a combination of limits of a Site that apply together to a request. It is immutable.
type LimitSet struct {
	Zones []*Zone // excludes those that are off

	// Hits and Settles have one element for each of Zones.
	Hits    []ratelimit.Hit    // templates: Fill sets the keys, and costs if Varies
	Settles []*settings.Settle // nil elements are not settled

	Audit    settings.Audit
	Endpoint string // the first one in Zones that is not ""

	Varies   bool // costs of Hits depend on the request
	Shadow   bool // one of Hits is Apart
	Settled  bool // one of Settles is not nil
	InFlight bool // one of Hits is on a limit in_flight
	Simple   bool // neither Shadow, Settled, InFlight nor Site.Hits, and the fields of a response are x alone
}

// maxSets bounds Site.sets, because clients choose which limits match their requests.
const maxSets = 256

func newLimitSet(s *Site, zones []*Zone) *LimitSet {
	t := &LimitSet{}
	if s.Policy != nil {
		t.Audit = s.audit
	}
	for _, z := range zones {
		if z.Mode == settings.Off {
			continue
		}
		if t.Endpoint == "" {
			t.Endpoint = z.Endpoint
		}
		t.Zones = append(t.Zones, z)
		t.Hits = append(t.Hits, z.Hit)
		t.Settles = append(t.Settles, z.Settle)
		t.Audit = settings.MaxAudit(t.Audit, z.audit)
		t.Varies = t.Varies || z.cost != nil
		t.Shadow = t.Shadow || z.Hit.Apart
		t.Settled = t.Settled || z.Settle != nil
	}
	t.InFlight = hasSlots(t.Hits)
	t.Simple = !t.Shadow && !t.Settled && !t.InFlight && !s.Fields.IETF && s.Hits == nil
	return t
}

// match sets Limits to the limits that match a request. Site.sets caches a LimitSet for each combination that
// has occurred. There are few, because requests to one path usually match the same limits.
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
		t = newLimitSet(s, zones)
		if len(s.sets) >= maxSets {
			s.sets = map[string]*LimitSet{}
		}
		s.sets[string(q.matched)] = t
	}
	q.Limits = t
	return nil
}

// isExempt reports whether a request comes from an exempt network. An assumed address never does.
func isExempt(s *Site, q *Request) bool {
	address, assumed := s.Address(q.HTTP)
	return !assumed && IsIn(s.Exempt, address)
}

// IsIn reports whether an address is in one of several networks. The zero Addr is in none.
func IsIn(networks []netip.Prefix, address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	for i := range networks {
		if networks[i].Contains(address) {
			return true
		}
	}
	return false
}
