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
	most int  // combinations, or addresses, of a half; and a 64th of the most size
	open bool // no rule and no ban names a network

	mu           sync.RWMutex // guards what follows
	newer, older map[combination]*matches
	size         int // how many rules and hits the newer half has

	outside, outsideBefore map[netip.Addr]bool // addresses in no network: the newer and the older half
}

// combination is what the memo remembers matches by.
type combination struct{ tier, method, host, path string }

// matches is what is known of the requests with one combination. It does not change.
type matches struct {
	found      []int32 // the rules that match, without those that are filed under a network
	outside    []int32 // those without networks: all that match an address in no network
	parameters bool    // the path has parameters
	seen       bool    // what follows is known: from the second use on

	// This holds from begin until before end; timed says that there is such a bound.
	timed      bool
	begin, end int64

	// direct: for an address in no network and a plain identity, the fields below are the verdict. The
	// key of each hit in byUser is the user.
	direct  bool
	simple  bool // see Verdict.Simple
	rule    string
	counter string
	hits    []ratelimit.Hit
	byUser  []int
	marks   []*Mark
	would   []*Mark
}

func newMemo(remember int) *memo {
	return &memo{
		most: remember/2 + 1, newer: make(map[combination]*matches), older: make(map[combination]*matches),
		outside: make(map[netip.Addr]bool), outsideBefore: make(map[netip.Addr]bool),
	}
}

// matchesOf returns the matches of a request of a tier at a time.
func matchesOf(s *Snapshot, f *Facts, tier string, at int64) *matches {
	remembered := s.memo
	key := combination{tier, f.Method, f.Host, f.Path}
	remembered.mu.RLock()
	m := remembered.newer[key]
	older := remembered.older[key]
	remembered.mu.RUnlock()
	if m != nil && m.seen && m.begin <= at && at < m.end {
		return m
	}
	if m == nil {
		m = older
	}
	switch {
	case m == nil || at < m.begin || at >= m.end:
		m = findMatches(s.set, f, tier)
	case !m.seen:
		m = completeMatches(s.set, m, tier, at)
	}
	if len(f.Path)+len(f.Host)+len(f.Method)+len(tier) > longestRemembered {
		return m
	}
	// They may be parts of a long request.
	stored := combination{strings.Clone(tier), strings.Clone(f.Method), strings.Clone(f.Host), strings.Clone(f.Path)}
	remembered.mu.Lock()
	if len(remembered.newer) >= remembered.most || remembered.size >= remembered.most*64 {
		remembered.older = remembered.newer
		remembered.newer = make(map[combination]*matches)
		remembered.size = 0
	}
	remembered.newer[stored] = m
	remembered.size += len(m.found) + len(m.outside) + len(m.hits)
	remembered.mu.Unlock()
	return m
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

// findMatches finds the rules that match, and nothing else: many requests come only once.
func findMatches(set *ruleSet, f *Facts, tier string) *matches {
	m := &matches{
		begin: always, end: never, parameters: strings.IndexByte(f.Path, ';') >= 0,
		found: findRules(set, set.tiers[tier], methodBit(set, f.Method), f.Host, f.Path, make([]int32, 0, 8)),
	}
	m.outside = m.found
	if set.anywhere {
		m.outside = make([]int32, 0, len(m.found))
		for _, ruleIndex := range m.found {
			if set.rules[ruleIndex].networks == nil {
				m.outside = append(m.outside, ruleIndex)
			}
		}
	}
	return m
}

// anybody stands for the user in the verdict of completeMatches. No counter has such a key.
const anybody = " "

// completeMatches finds out whether the rules that match give the verdict, whoever sends the request: it is then that on
// a request of anybody.
func completeMatches(set *ruleSet, first *matches, tier string, at int64) *matches {
	number := set.tiers[tier]
	m := &matches{begin: always, end: never, found: first.found, outside: first.outside, parameters: first.parameters, seen: true}
	if m.parameters {
		return m
	}
	for _, ruleIndex := range m.outside {
		r := set.rules[ruleIndex]
		if !m.holds(r.from, r.until, at) {
			continue
		}
		if r.row.Action != Charge || !r.by.user && !r.by.all {
			return m
		}
		for _, l := range set.limits[r.first:r.end] {
			for i := range l.tiers {
				if l.tiers[i].tier == number {
					m.holds(l.tiers[i].from, l.tiers[i].until, at)
				}
			}
		}
	}
	o := &Verdict{Tier: tier}
	tryRules(set, m.outside, &Facts{}, nil, &amounts{user: anybody}, at, o)
	if o.Refused() {
		return m
	}
	for i := range o.Hits {
		if o.Hits[i].Key == anybody {
			m.byUser = append(m.byUser, i)
		}
	}
	m.direct = true
	m.simple = o.Simple
	m.rule = o.Rule
	m.counter = o.Counter
	m.hits = o.Hits
	m.marks = o.Marks
	m.would = o.Would
	return m
}

// holds reports whether now is from the time from until before the time until. It limits the
// matches to the time in which this does not change.
func (m *matches) holds(from, until, now int64) bool {
	for _, change := range []int64{from, until} {
		if change == always || change == never {
			continue
		}
		m.timed = true
		if change <= now && change > m.begin {
			m.begin = change
		}
		if change > now && change < m.end {
			m.end = change
		}
	}
	return from <= now && now < until
}
