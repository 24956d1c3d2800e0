package policy

import (
	"net/netip"
	"strings"
	"sync"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// memo remembers which rules match by tier, method, host and path, and which addresses are
// in no network that a rule or a ban names. It has two halves: if the newer half is full,
// the older one is forgotten. So it is bounded, and what is used often stays.
type memo struct {
	most int  // plans, or addresses, of a half; and a 64th of the places in its plans
	open bool // no rule and no ban names a network

	mu           sync.RWMutex // guards what follows
	newer, older map[planKey]*plan
	places       int // of rules in the plans that were added to the newer half

	outside, outsideBefore map[netip.Addr]bool // addresses in no network: the newer and the older half
}

// planKey is a combination.
type planKey struct{ tier, method, host, path string }

// plan is what is known of the requests with one combination. It does not change.
type plan struct {
	found      []int32 // the rules that match, without those that are filed under a network
	outside    []int32 // those without networks: all that match an address in no network
	parameters bool    // the path has parameters
	seen       bool    // what follows is known: from the second use on

	// The plan holds from begin until before end; timed says that there is such a bound.
	timed      bool
	begin, end int64

	// direct is true if an address in no network and a plain identity have no influence. The
	// fields below are then the outcome, except for the keys of the hits in byUser: these keys
	// are the users.
	direct  bool
	simple  bool // see Outcome.Simple
	rule    string
	counter string
	hits    []ratelimit.Hit
	byUser  []int
	marks   []*Mark
	would   []*Mark
}

func newMemo(remember int) *memo {
	return &memo{
		most: remember/2 + 1, newer: make(map[planKey]*plan), older: make(map[planKey]*plan),
		outside: make(map[netip.Addr]bool), outsideBefore: make(map[netip.Addr]bool),
	}
}

// planOf returns the plan for a request of a tier at a time.
func planOf(s *Snapshot, f *Facts, tier string, at int64) *plan {
	m := s.memo
	key := planKey{tier, f.Method, f.Host, f.Path}
	m.mu.RLock()
	p := m.newer[key]
	older := m.older[key]
	m.mu.RUnlock()
	if p != nil && p.seen && p.begin <= at && at < p.end {
		return p
	}
	if p == nil {
		p = older
	}
	switch {
	case p == nil || at < p.begin || at >= p.end:
		p = firstPlan(s.set, f, tier)
	case !p.seen:
		p = secondPlan(s.set, p, tier, at)
	}
	if len(f.Path)+len(f.Host)+len(f.Method)+len(tier) > longestRemembered {
		return p
	}
	// They may be parts of a long request.
	stored := planKey{strings.Clone(tier), strings.Clone(f.Method), strings.Clone(f.Host), strings.Clone(f.Path)}
	m.mu.Lock()
	if len(m.newer) >= m.most || m.places >= m.most*64 {
		m.older = m.newer
		m.newer = make(map[planKey]*plan)
		m.places = 0
	}
	m.newer[stored] = p
	m.places += len(p.found) + len(p.outside) + len(p.hits)
	m.mu.Unlock()
	return p
}

// longestRemembered is the most bytes of a path, host, method and tier together that the memo
// remembers: a client chooses them.
const longestRemembered = 512

// addOutside remembers that an address is in no network.
func (m *memo) addOutside(address netip.Addr) {
	m.mu.Lock()
	if len(m.outside) >= m.most {
		m.outsideBefore = m.outside
		m.outside = make(map[netip.Addr]bool)
	}
	m.outside[address] = true
	m.mu.Unlock()
}

// firstPlan finds the rules that match, and nothing else: many requests come only once.
func firstPlan(set *ruleSet, f *Facts, tier string) *plan {
	p := &plan{
		begin: always, end: never, parameters: strings.IndexByte(f.Path, ';') >= 0,
		found: findRules(set, set.tiers[tier], methodBit(set, f.Method), f.Host, f.Path, make([]int32, 0, 8)),
	}
	p.outside = p.found
	if set.anywhere {
		p.outside = make([]int32, 0, len(p.found))
		for _, place := range p.found {
			if set.rules[place].networks == nil {
				p.outside = append(p.outside, place)
			}
		}
	}
	return p
}

// secondPlan finds out whether the rules of a plan alone give the outcome.
func secondPlan(set *ruleSet, first *plan, tier string, at int64) *plan {
	number := set.tiers[tier]
	p := &plan{begin: always, end: never, found: first.found, outside: first.outside, parameters: first.parameters, seen: true}
	if p.parameters {
		return p
	}
	var families []int32
	for _, place := range p.outside {
		r := set.rules[place]
		if r.family != 0 && r.row.Action == Charge && isTaken(families, r.family) {
			continue
		}
		if !p.holds(r.from, r.until, at) {
			continue
		}
		if r.row.Action != Charge || !r.by.user && !r.by.all {
			return p
		}
		if r.row.Mode != Shadow {
			families = append(families, r.family)
			if p.rule == "" {
				p.rule = r.row.Name
				p.counter = r.mark.Counter
			}
		}
		for i := r.first; i < r.end; i++ {
			l := set.limits[i]
			a := l.own
			for j := range l.tiers {
				if l.tiers[j].tier == number && p.holds(l.tiers[j].from, l.tiers[j].until, at) {
					a = l.tiers[j].amount
					break
				}
			}
			if a.unlimited {
				continue
			}
			if a.none {
				return p
			}
			hit := ratelimit.Hit{Limit: a.limit, Cost: r.cost, Secret: r.secret}
			if r.by.all {
				hit.Key = "all"
			} else {
				p.byUser = append(p.byUser, len(p.hits))
			}
			p.hits = append(p.hits, hit)
			p.marks = append(p.marks, a.mark)
		}
	}
	p.direct = true
	p.simple = len(p.marks) > 0
	for _, m := range p.marks {
		p.simple = p.simple && m.simple
	}
	return p
}

// holds reports whether now is from the time from until before the time until. It limits the
// plan to the time in which this does not change.
func (p *plan) holds(from, until, now int64) bool {
	for _, change := range []int64{from, until} {
		if change == always || change == never {
			continue
		}
		p.timed = true
		if change <= now && change > p.begin {
			p.begin = change
		}
		if change > now && change < p.end {
			p.end = change
		}
	}
	return from <= now && now < until
}
