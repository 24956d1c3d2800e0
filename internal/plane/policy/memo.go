package policy

import (
	"strings"
	"sync"
)

// memo remembers which rules match by tier, method, host and path. If it is full, it begins anew. It is
// bounded so, and finding a rule again costs less than a list of what is in use.
type memo struct {
	most int // combinations, and a 64th of the most rules and hits

	mu      sync.RWMutex // guards what follows
	matches map[combination]*matches
	size    int // how many rules and hits they have
}

// combination is a key of the memo.
type combination struct{ tier, method, host, path string }

// matches are the rules that match the requests with one combination, without those that are filed under
// networks. They do not change.
type matches struct {
	found []*rule
	seen  bool // what follows is known: from the second use on, since many requests come only once

	// verdict is that on all plain senders, see amounts.plainUntil, or nil. The key of each hit in byUser is
	// the user.
	verdict *Verdict
	byUser  []int
}

func newMemo(most int) *memo { return &memo{most: most, matches: make(map[combination]*matches)} }

// longestRemembered is the most bytes of a path, host, method and tier together that the memo
// remembers: a client chooses them.
const longestRemembered = 512

// remembered does what findRules does. The list must not be changed.
func remembered(set *ruleSet, f *Facts, tier string) []*rule {
	all := set.memo
	key := combination{tier, f.Method, f.Host, f.Path}
	all.mu.RLock()
	known := all.matches[key]
	all.mu.RUnlock()
	if known != nil && known.seen {
		return known.found
	}
	m := &matches{}
	if known == nil {
		m.found = findRules(set.index, f, tier, make([]*rule, 0, 8))
	} else {
		m.found = known.found
		m.seen = true
		complete(m, f.Path, tier)
	}
	if len(f.Path)+len(f.Host)+len(f.Method)+len(tier) > longestRemembered {
		return m.found
	}
	// They may be parts of a long request.
	stored := combination{
		strings.Clone(tier), strings.Clone(f.Method), strings.Clone(f.Host), strings.Clone(f.Path),
	}
	all.mu.Lock()
	if len(all.matches) >= all.most || all.size >= all.most*64 {
		all.matches = make(map[combination]*matches)
		all.size = 0
	}
	all.matches[stored] = m
	all.size += len(m.found)
	if m.verdict != nil {
		all.size += len(m.verdict.Hits)
	}
	all.mu.Unlock()
	return m.found
}

// anybody stands for the user in the verdict of complete. No counter has such a key.
const anybody = " "

// complete finds out whether the rules that match give one verdict on all plain senders at any time. It is
// that on a request of anybody.
func complete(m *matches, path, tier string) {
	if strings.IndexByte(path, ';') >= 0 {
		return
	}
	for _, r := range m.found {
		if r.row.Action != Charge || r.sometimes || !r.by.user && !r.by.all {
			return
		}
		for _, l := range r.limits {
			for _, c := range l.tiers {
				if c.tier == tier && (c.from != always || c.until != never) {
					return
				}
			}
		}
	}
	o := &Verdict{Tier: tier}
	apply(m.found, &Facts{}, &amounts{user: anybody}, 0, o)
	if o.Refused() {
		return
	}
	for i := range o.Hits {
		if o.Hits[i].Key == anybody {
			m.byUser = append(m.byUser, i)
		}
	}
	m.verdict = o
}
