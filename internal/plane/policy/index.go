package policy

import (
	"net/netip"
	"strings"
)

// index finds the rules that may match a request. It files each rule under every value of one kind of
// condition (networks, paths, hosts or tiers): the kind that the fewest other rules share.
type index struct {
	// byText files rules under hosts, tiers, and the parts of paths before the first wildcard. A host that
	// begins with a dot stands for its subdomains. A search can find a rule by an equal value of another
	// kind, and keepMatching then drops the rule.
	byText     map[string][]*rule
	maxSlashes int // the maximum number of slashes in a path in byText
	maxDots    int // the maximum number of dots in a host in byText that begins with a dot

	byNetwork     map[netip.Prefix][]*rule
	prefixLengths []int // the distinct lengths in byNetwork

	unfiled []*rule // rules without conditions of these kinds
}

// conditionValues returns the values of a rule's conditions, one list for each kind. Networks come first,
// because newIndex prefers the first of equally good kinds, and most addresses are in no network.
func conditionValues(r *rule) [][]string {
	var networks, paths, hosts []string
	for _, network := range r.networks {
		networks = append(networks, network.String())
	}
	for _, p := range r.paths {
		paths = append(paths, p.literal)
	}
	for _, p := range r.hosts {
		hosts = append(hosts, p.name)
	}
	return [][]string{networks, paths, hosts, r.row.Tiers}
}

// newIndex returns an index of rules.
func newIndex(rules []*rule) *index {
	idx := &index{byText: make(map[string][]*rule), byNetwork: make(map[netip.Prefix][]*rule)}
	count := make(map[string]int)
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
			idx.unfiled = append(idx.unfiled, r)
		case 0:
			for _, network := range r.networks {
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

// findRules appends to found, in order, the rules that match a request by tier, method, host and path. It
// omits rules that are filed under networks: see findByNetwork.
func findRules(idx *index, f *Facts, tier string, found []*rule) []*rule {
	start := len(found)
	path := f.Path
	if strings.IndexByte(path, '\\') >= 0 {
		path = backslashAsSlash(path) // the part before a wildcard is equal in both readings
	}
	found = append(found, idx.byText[""]...)
	end := 0
	for slashes := 0; slashes < idx.maxSlashes && end < len(path); slashes++ {
		next := strings.IndexByte(path[end+1:], '/')
		if next < 0 {
			end = len(path)
		} else {
			end += next + 1
		}
		found = append(found, idx.byText[path[:end]]...)
	}
	found = append(found, idx.byText[f.Host]...)
	end = len(f.Host)
	for dots := 0; dots < idx.maxDots && end > 1; dots++ {
		end = strings.LastIndexByte(f.Host[:end], '.')
		if end < 1 {
			break
		}
		found = append(found, idx.byText[f.Host[end:]]...)
	}
	found = append(found, idx.byText[tier]...)
	found = append(found, idx.unfiled...)
	return sortRules(keepMatching(found, start, f, tier), start)
}

// findByNetwork appends to found the rules that are filed under a network of the client's address and match
// by tier, method, host and path. It sorts all of found.
func findByNetwork(idx *index, f *Facts, tier string, found []*rule) []*rule {
	start := len(found)
	address := f.Address.Unmap()
	for _, bits := range idx.prefixLengths {
		if bits <= address.BitLen() {
			network, _ := address.Prefix(bits)
			found = append(found, idx.byNetwork[network]...)
		}
	}
	if len(found) == start {
		return found
	}
	return sortRules(keepMatching(found, start, f, tier), 0)
}

// keepMatching removes from found[start:] the rules that do not match by tier, method, host and path.
func keepMatching(found []*rule, start int, f *Facts, tier string) []*rule {
	method := strings.ToUpper(f.Method)
	end := start
	for _, r := range found[start:] {
		// The nil checks avoid calls, which are slow in the interpreter: most rules have few conditions.
		if (r.row.Tiers == nil || matchesTier(r, tier)) &&
			(r.row.Methods == nil || matchesMethod(r, method)) &&
			(r.hosts == nil || matchesHost(r, f.Host)) && (r.paths == nil || matchesPath(r, f.Path)) {
			found[end] = r
			end++
		}
	}
	return found[:end]
}

// sortRules sorts found[start:] by position and drops duplicates: the index finds a rule with two paths
// twice. It uses an insertion sort, because most requests match few rules.
func sortRules(found []*rule, start int) []*rule {
	rules := found[start:]
	for i, r := range rules {
		j := i
		for j > 0 && rules[j-1].position > r.position {
			rules[j] = rules[j-1]
			j--
		}
		rules[j] = r
	}
	end := start
	for i, r := range rules {
		if i == 0 || r != rules[i-1] {
			found[end] = r
			end++
		}
	}
	return found[:end]
}
