package policy

import (
	"strings"
	"sync"
)

// memo caches the rules that match by tier, method, host and path. A full memo is emptied, because finding
// rules again costs less than keeping track of the entries in use.
type memo struct {
	capacity int // the maximum of combinations, and a 64th of that of size

	mu      sync.RWMutex // guards what follows
	matches map[combination]*matches
	size    int // the number of their rules and hits
}

// combination is a key of the memo.
type combination struct{ tier, method, host, path string }

// matches holds the rules that match the requests with one combination, except rules filed under networks. It
// is immutable.
type matches struct {
	rules    []*rule
	complete bool // verdict is computed: from the second use on, because many combinations occur once

	// verdict holds for all plain senders, see senderState.plainUntil. It is nil if they get different ones.
	// userHits are the indexes of its hits that count by user.
	verdict  *Verdict
	userHits []int
}

func newMemo(most int) *memo { return &memo{capacity: most, matches: make(map[combination]*matches)} }

// maxMemoBytes bounds a combination in the memo, because a client chooses its texts.
const maxMemoBytes = 512

// findCached returns the result of findRules, from the memo if possible. The caller must not change it.
func findCached(set *ruleSet, f *Facts, tier string) []*rule {
	all := set.memo
	key := combination{tier, f.Method, f.Host, f.Path}
	all.mu.RLock()
	known := all.matches[key]
	all.mu.RUnlock()
	if known != nil && known.complete {
		return known.rules
	}
	m := &matches{}
	if known == nil {
		m.rules = findRules(set.index, f, tier, make([]*rule, 0, 8))
	} else {
		m.rules = known.rules
		m.complete = true
		cacheVerdict(m, f.Path, tier)
	}
	if len(f.Path)+len(f.Host)+len(f.Method)+len(tier) > maxMemoBytes {
		return m.rules
	}
	// They may be parts of a long request.
	stored := combination{
		strings.Clone(tier), strings.Clone(f.Method), strings.Clone(f.Host), strings.Clone(f.Path),
	}
	all.mu.Lock()
	if len(all.matches) >= all.capacity || all.size >= all.capacity*64 {
		all.matches = make(map[combination]*matches)
		all.size = 0
	}
	all.matches[stored] = m
	all.size += len(m.rules)
	if m.verdict != nil {
		all.size += len(m.verdict.Hits)
	}
	all.mu.Unlock()
	return m.rules
}

// anyUser stands for the user in the verdict of cacheVerdict. No user has this value in a key.
const anyUser = " "

// cacheVerdict sets m.verdict if the rules give the same verdict on all plain senders at any time.
func cacheVerdict(m *matches, path, tier string) {
	if strings.IndexByte(path, ';') >= 0 {
		return
	}
	for _, r := range m.rules {
		if r.row.Action != Charge || r.dynamic || !r.countBy.userOnly && !r.countBy.allOnly {
			return
		}
		for _, l := range r.limits {
			for _, a := range l.tiers {
				if a.tier == tier && (a.from != always || a.until != never) {
					return
				}
			}
		}
	}
	o := &Verdict{Tier: tier}
	apply(m.rules, &Facts{}, &senderState{user: anyUser}, 0, o)
	if o.Refused() {
		return
	}
	for i := range o.Hits {
		if o.Hits[i].Key == anyUser {
			m.userHits = append(m.userHits, i)
		}
	}
	m.verdict = o
}
