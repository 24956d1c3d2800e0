package policy

import (
	"strings"
	"sync"
)

// memo caches the rules that match by tier, method, host and path. A full memo is emptied, because to find
// rules again costs less than to track which entries are in use.
type memo struct {
	capacity int // the maximum of combinations

	mu      sync.RWMutex // guards matches
	matches map[combination]*matches
}

// combination is a key of the memo.
type combination struct{ tier, method, host, path string }

// matches holds the rules that match the requests with one combination, except rules filed under networks,
// because a combination has no address. It is immutable.
type matches struct {
	rules []*rule
	// complete means that memoVerdict has run. The first use of a combination leaves complete unset, because
	// many combinations occur only once.
	complete bool

	// verdict applies to all plain senders: those with a tier and a user, but without a ban, override or
	// billing period. If it is nil, each request computes its own. userHits are the indexes of the hits that
	// count by user.
	verdict  *Verdict
	userHits []int
}

const (
	// maxMemoBytes bounds the size of a combination in the memo, because a client chooses its texts.
	maxMemoBytes = 512
	// maxMemoRules bounds the rules of a combination in the memo.
	maxMemoRules = 64
)

// findInMemo returns the result of findRules, from the memo if possible. The caller must not change the list.
func findInMemo(set *ruleSet, f *Facts, tier string) []*rule {
	cache := set.memo
	key := combination{tier, f.Method, f.Host, f.Path}
	cache.mu.RLock()
	entry := cache.matches[key]
	cache.mu.RUnlock()
	if entry != nil && entry.complete {
		return entry.rules
	}
	m := &matches{}
	if entry == nil {
		m.rules = findRules(set.index, f, tier, make([]*rule, 0, 8))
	} else {
		m.rules = entry.rules
		m.complete = true
		memoVerdict(m, f, tier)
	}
	if len(f.Path)+len(f.Host)+len(f.Method)+len(tier) > maxMemoBytes || len(m.rules) > maxMemoRules {
		return m.rules
	}
	// Copies, because the texts may be parts of a long request.
	stored := combination{
		strings.Clone(tier), strings.Clone(f.Method), strings.Clone(f.Host), strings.Clone(f.Path),
	}
	cache.mu.Lock()
	if len(cache.matches) >= cache.capacity {
		cache.matches = map[combination]*matches{}
	}
	cache.matches[stored] = m
	cache.mu.Unlock()
	return m.rules
}

// anyUser is the placeholder for the user in a cached verdict. No user has this value in a counter key.
const anyUser = " "

// memoVerdict sets m.verdict if the rules result in the same verdict for all plain senders at any time, and
// it refuses no request. For a path with a semicolon, m.verdict stays nil.
func memoVerdict(m *matches, f *Facts, tier string) {
	if strings.IndexByte(f.Path, ';') >= 0 {
		return
	}
	for _, r := range m.rules {
		if r.row.Action != ActionLimit || r.dynamic || !r.countBy.userOnly && !r.countBy.allOnly {
			return
		}
		for _, l := range r.limits {
			for _, a := range l.tiers {
				if a.tier == tier && (a.from != 0 || a.until != noEnd) {
					return
				}
			}
		}
	}
	v := &Verdict{Tier: tier}
	selectRules(m.rules, &Facts{Method: f.Method, Path: f.Path}, &senderState{user: anyUser}, 0, v)
	if v.Refused() {
		return
	}
	for i := range v.Hits {
		if v.Hits[i].Key == anyUser {
			m.userHits = append(m.userHits, i)
		}
	}
	m.verdict = v
}
