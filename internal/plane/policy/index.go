package policy

import (
	"net/netip"
	"strings"
)

// index finds the rules that may match a request. It files each rule under every value of one kind of
// condition (networks, paths, hosts or tiers): the kind that the fewest other rules share.
type index struct {
	// byText files rules under hosts, tiers, and the parts of paths before the first wildcard. A host that
	// begins with a dot stands for its subdomains. If values of two kinds are equal, a search also finds
	// rules of the other kind, and keepMatching drops them.
	byText     map[string][]*rule
	maxSlashes int // the most slashes of a path in byText
	maxDots    int // the most dots of a host in byText that begins with a dot

	byNetwork     map[netip.Prefix][]*rule
	prefixLengths []int // the distinct ones of byNetwork

	unfiled []*rule // rules without such conditions
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

// newIndex files rules.
func newIndex(rules []*rule) *index {
	x := &index{byText: make(map[string][]*rule), byNetwork: make(map[netip.Prefix][]*rule)}
	count := make(map[string]int)
	for _, r := range rules {
		for _, values := range conditionValues(r) {
			for _, value := range values {
				count[value]++
			}
		}
	}
	for _, r := range rules {
		// The fullest value of a kind determines how many rules a search has to try.
		fewest := len(rules) + 1
		chosen := -1
		all := conditionValues(r)
		for kind, values := range all {
			most := 0
			for _, value := range values {
				most = larger(most, count[value])
			}
			if most > 0 && most < fewest {
				fewest = most
				chosen = kind
			}
		}
		switch chosen {
		case -1:
			x.unfiled = append(x.unfiled, r)
		case 0:
			for _, network := range r.networks {
				x.byNetwork[network] = append(x.byNetwork[network], r)
				x.prefixLengths = addLength(x.prefixLengths, network)
			}
		default:
			for _, value := range all[chosen] {
				x.byText[value] = append(x.byText[value], r)
				x.maxSlashes = larger(x.maxSlashes, strings.Count(value, "/"))
				if strings.HasPrefix(value, ".") {
					x.maxDots = larger(x.maxDots, strings.Count(value, "."))
				}
			}
		}
	}
	return x
}

func larger(a, b int) int {
	if a > b {
		return a
	}
	return b
}

// findRules appends to found, in order, the rules that match a request by tier, method, host and path. It
// omits rules that are filed under networks: see findByNetwork.
func findRules(x *index, f *Facts, tier string, found []*rule) []*rule {
	begin := len(found)
	whole := f.Path
	if strings.IndexByte(whole, '\\') >= 0 {
		whole = backslashAsSlash(whole) // the part before a wildcard is the same in both readings
	}
	found = append(found, x.byText[""]...)
	at := 0
	for slashes := 0; slashes < x.maxSlashes && at < len(whole); slashes++ {
		next := strings.IndexByte(whole[at+1:], '/')
		if next < 0 {
			at = len(whole)
		} else {
			at += next + 1
		}
		found = append(found, x.byText[whole[:at]]...)
	}
	found = append(found, x.byText[f.Host]...)
	at = len(f.Host)
	for dots := 0; dots < x.maxDots && at > 1; dots++ {
		at = strings.LastIndexByte(f.Host[:at], '.')
		if at < 1 {
			break
		}
		found = append(found, x.byText[f.Host[at:]]...)
	}
	found = append(found, x.byText[tier]...)
	found = append(found, x.unfiled...)
	return sortRules(keepMatching(found, begin, f, tier), begin)
}

// findByNetwork appends the rules that are filed under a network of the client's address, and match by tier,
// method, host and path. It sorts all of found.
func findByNetwork(x *index, f *Facts, tier string, found []*rule) []*rule {
	begin := len(found)
	address := f.Address.Unmap()
	for _, bits := range x.prefixLengths {
		if bits <= address.BitLen() {
			network, _ := address.Prefix(bits)
			found = append(found, x.byNetwork[network]...)
		}
	}
	if len(found) == begin {
		return found
	}
	return sortRules(keepMatching(found, begin, f, tier), 0)
}

// keepMatching keeps, of the rules in found[begin:], those that match by tier, method, host and path.
func keepMatching(found []*rule, begin int, f *Facts, tier string) []*rule {
	method := strings.ToUpper(f.Method)
	end := begin
	for _, r := range found[begin:] {
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

// sortRules sorts found[begin:] by position and drops duplicates: the index finds a rule with two paths
// twice. An insertion sort suits the few rules of most requests.
func sortRules(found []*rule, begin int) []*rule {
	rules := found[begin:]
	for i, r := range rules {
		at := i
		for at > 0 && rules[at-1].position > r.position {
			rules[at] = rules[at-1]
			at--
		}
		rules[at] = r
	}
	end := begin
	for i, r := range rules {
		if i == 0 || r != rules[i-1] {
			found[end] = r
			end++
		}
	}
	return found[:end]
}
