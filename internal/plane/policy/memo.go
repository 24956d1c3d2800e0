package policy

import (
	"strings"
	"sync"
)

// memo remembers which rules match by tier, method, host and path, without those that are filed under networks. If it is
// full, it begins anew. It is bounded so, and finding a rule again costs less than a list of what is in use.
type memo struct {
	most int // combinations, and a 64th of the most rules

	mu    sync.RWMutex // guards what follows
	found map[combination][]*rule
	size  int // how many rules the lists have
}

// combination is what the memo remembers rules by.
type combination struct{ tier, method, host, path string }

func newMemo(most int) *memo { return &memo{most: most, found: make(map[combination][]*rule)} }

// longestRemembered is the most bytes of a path, host, method and tier together that the memo
// remembers: a client chooses them.
const longestRemembered = 512

// remembered does what findRules does. The list must not be changed.
func remembered(set *ruleSet, f *Facts, tier string) []*rule {
	m := set.memo
	key := combination{tier, f.Method, f.Host, f.Path}
	m.mu.RLock()
	known := m.found[key]
	m.mu.RUnlock()
	if known != nil {
		return known
	}
	found := findRules(set.index, f, tier, false, make([]*rule, 0, 8)) // not nil, also if it has no rule
	if len(f.Path)+len(f.Host)+len(f.Method)+len(tier) > longestRemembered {
		return found
	}
	// They may be parts of a long request.
	stored := combination{strings.Clone(tier), strings.Clone(f.Method), strings.Clone(f.Host), strings.Clone(f.Path)}
	m.mu.Lock()
	if len(m.found) >= m.most || m.size >= m.most*64 {
		m.found = make(map[combination][]*rule)
		m.size = 0
	}
	m.found[stored] = found
	m.size += len(found)
	m.mu.Unlock()
	return found
}
