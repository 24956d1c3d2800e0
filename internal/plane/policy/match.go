package policy

import (
	"net/netip"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
)

// match returns the rules that match a request by tier, method, host and path, in the order of evaluation.
// Rules that the index files under networks also match by network. The caller must not change the list, which
// is valid until the next call with v.
func match(set *ruleSet, f *Facts, v *Verdict) []*rule {
	if set.memo != nil && len(set.index.byNetwork) == 0 {
		return findInMemo(set, f, v.Tier)
	}
	rules := v.rules[:0]
	if set.memo != nil {
		rules = append(rules, findInMemo(set, f, v.Tier)...)
	} else {
		rules = findRules(set.index, f, v.Tier, rules)
	}
	if len(set.index.byNetwork) > 0 {
		rules = findByNetwork(set.index, f, v.Tier, rules)
	}
	v.rules = rules
	return rules
}

// index finds the rules that may match a request. It files each rule under every value of one kind of
// condition: networks, paths, hosts or tiers. For each kind, newIndex counts how many rules have the rule's
// most common value, and uses the kind with the smallest count.
type index struct {
	// byText files rules under hosts, tiers, and the parts of paths before the first wildcard, in lower case.
	// A host that begins with a dot stands for its subdomains. "" has the rules without conditions of these
	// kinds. A search can find a rule by an equal value of another kind, such as a tier with the name of a
	// host; keepMatching then drops the rule.
	byText     map[string][]*rule
	maxSlashes int // the maximum number of slashes in a path in byText
	maxDots    int // the maximum number of dots in a host in byText that begins with a dot

	byNetwork     map[netip.Prefix][]*rule
	prefixLengths []int // the distinct lengths in byNetwork
}

// conditionValues returns the values of a rule's conditions, one list for each kind. Networks come first,
// because newIndex prefers the first of equally good kinds, and most addresses are in no network.
func conditionValues(r *rule) [][]string {
	var networks, paths, hosts []string
	for _, network := range r.row.Networks {
		networks = append(networks, network.String())
	}
	for _, p := range r.paths {
		paths = append(paths, option.LowerASCII.Replace(p.literal))
	}
	for _, host := range r.hosts {
		hosts = append(hosts, strings.TrimPrefix(host, "*"))
	}
	return [][]string{networks, paths, hosts, r.row.Tiers}
}

// newIndex returns an index of rules.
func newIndex(rules []*rule) *index {
	idx := &index{byText: map[string][]*rule{}, byNetwork: map[netip.Prefix][]*rule{}}
	count := map[string]int{}
	for _, r := range rules {
		for _, values := range conditionValues(r) {
			for _, value := range values {
				count[value]++
			}
		}
	}
	for _, r := range rules {
		// The most frequent value of a kind determines how many rules a search has to try.
		fewestRules := len(rules) + 1
		chosen := -1
		kinds := conditionValues(r)
		for i, values := range kinds {
			fullest := 0
			for _, value := range values {
				fullest = larger(fullest, count[value])
			}
			if fullest > 0 && fullest < fewestRules {
				fewestRules = fullest
				chosen = i
			}
		}
		switch chosen {
		case -1:
			idx.byText[""] = append(idx.byText[""], r)
		case 0: // see conditionValues
			for _, network := range r.row.Networks {
				idx.byNetwork[network] = append(idx.byNetwork[network], r)
				idx.prefixLengths = addLength(idx.prefixLengths, network)
			}
		default:
			for _, value := range kinds[chosen] {
				idx.byText[value] = append(idx.byText[value], r)
				idx.maxSlashes = larger(idx.maxSlashes, strings.Count(value, "/"))
				if strings.HasPrefix(value, ".") {
					idx.maxDots = larger(idx.maxDots, strings.Count(value, "."))
				}
			}
		}
	}
	return idx
}

func larger(a, b int) int {
	if a > b {
		return a
	}
	return b
}

// findRules appends to a list, in order, the rules that match a request by tier, method, host and path. It
// omits rules that are filed under networks: see findByNetwork.
func findRules(idx *index, f *Facts, tier string, rules []*rule) []*rule {
	start := len(rules)
	path := option.LowerASCII.Replace(f.Path)
	if strings.IndexByte(path, '\\') >= 0 {
		path = backslashAsSlash(path) // the part before a wildcard is equal in both readings
	}
	rules = append(rules, idx.byText[""]...)
	end := 0
	for slashes := 0; slashes < idx.maxSlashes && end < len(path); slashes++ {
		next := strings.IndexByte(path[end+1:], '/')
		if next < 0 {
			end = len(path)
		} else {
			end += next + 1
		}
		rules = append(rules, idx.byText[path[:end]]...)
	}
	rules = append(rules, idx.byText[f.Host]...)
	end = len(f.Host)
	for dots := 0; dots < idx.maxDots && end > 1; dots++ {
		end = strings.LastIndexByte(f.Host[:end], '.')
		if end < 1 {
			break
		}
		rules = append(rules, idx.byText[f.Host[end:]]...)
	}
	rules = append(rules, idx.byText[tier]...)
	rules = keepMatching(rules, start, f, tier)
	if len(rules) <= start+1 {
		return rules
	}
	return sortRules(rules, start)
}

// findByNetwork appends to a list the rules that are filed under a network of the client's address and match
// by tier, method, host and path. It sorts the whole list.
func findByNetwork(idx *index, f *Facts, tier string, rules []*rule) []*rule {
	start := len(rules)
	for _, network := range networksOf(f.Address, idx.prefixLengths) {
		rules = append(rules, idx.byNetwork[network]...)
	}
	if !f.Address.IsValid() {
		rules = append(rules, idx.byNetwork[everyIPv4]...) // see matchesNetwork
	}
	if len(rules) == start {
		return rules
	}
	return sortRules(keepMatching(rules, start, f, tier), 0)
}

// sortRules sorts rules[start:] by position and drops duplicates: the index finds a rule with two paths
// twice. It uses an insertion sort, because most requests match few rules.
func sortRules(rules []*rule, start int) []*rule {
	tail := rules[start:]
	for i, r := range tail {
		j := i
		for j > 0 && tail[j-1].position > r.position {
			tail[j] = tail[j-1]
			j--
		}
		tail[j] = r
	}
	end := start
	for i, r := range tail {
		if i == 0 || r != tail[i-1] {
			rules[end] = r
			end++
		}
	}
	return rules[:end]
}

// forAllSenders returns a copy of a rule without the conditions on its senders.
func forAllSenders(r *rule) *rule {
	other := *r
	other.row.Tiers = nil
	other.row.Networks = nil
	return &other
}

// CountsTokens reports whether a rule with limits of tokens matches the method, the host and the path of a
// request from any sender.
func CountsTokens(s *Snapshot, f *Facts) bool { return len(findRules(s.set.tokens, f, "", nil)) > 0 }

// CountsTokens is like the function CountsTokens, with the rules in force.
func (p *Policy) CountsTokens(f *Facts) bool {
	s := p.snapshot()
	return s != nil && CountsTokens(s, f)
}
