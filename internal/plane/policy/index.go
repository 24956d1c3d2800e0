package policy

import (
	"net/netip"
	"strings"
)

// index finds the rules that may match a request. Each rule is filed under one kind of condition, under every
// value of that kind: the kind with the fewest other rules.
type index struct {
	// byText has rules under hosts, tiers, and the parts of paths before the first wildcard. A host with a
	// dot before it stands for the names below it. Values of several kinds may be equal: a rule is found by
	// a value of another kind, and then does not match.
	byText map[string][]*rule
	depth  int // no path that a rule is filed under has more slashes
	labels int // no host below which a rule is filed has more dots

	byNetwork map[netip.Prefix][]*rule
	lengths   []int // of these networks

	others []*rule // rules without such conditions
}

// filings returns the values of a rule, those of one kind together. The first are networks: most addresses
// are in none, so a network comes before another value with as many rules.
func filings(r *rule) [][]string {
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

// newIndex files rules, which are in the order in which they are tried.
func newIndex(rules []*rule) *index {
	x := &index{byText: make(map[string][]*rule), byNetwork: make(map[netip.Prefix][]*rule)}
	count := make(map[string]int)
	for _, r := range rules {
		for _, values := range filings(r) {
			for _, value := range values {
				count[value]++
			}
		}
	}
	for _, r := range rules {
		// A kind is as full as its fullest value of this rule.
		fewest := len(rules) + 1
		chosen := -1
		all := filings(r)
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
			x.others = append(x.others, r)
		case 0:
			for _, network := range r.networks {
				x.byNetwork[network] = append(x.byNetwork[network], r)
				x.lengths = addLength(x.lengths, network)
			}
		default:
			for _, value := range all[chosen] {
				x.byText[value] = append(x.byText[value], r)
				x.depth = larger(x.depth, strings.Count(value, "/"))
				if strings.HasPrefix(value, ".") {
					x.labels = larger(x.labels, strings.Count(value, "."))
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

// findRules appends to found, in order, the rules that match a request by tier, method, host
// and path. Rules that are filed under networks are not among them.
func findRules(x *index, f *Facts, tier string, found []*rule) []*rule {
	begin := len(found)
	whole := f.Path
	if strings.IndexByte(whole, '\\') >= 0 {
		whole = slashed(whole) // what precedes a wildcard is the same in both readings
	}
	found = append(found, x.byText[""]...)
	at := 0
	for slashes := 0; slashes < x.depth && at < len(whole); slashes++ {
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
	for dots := 0; dots < x.labels && at > 1; dots++ {
		at = strings.LastIndexByte(f.Host[:at], '.')
		if at < 1 {
			break
		}
		found = append(found, x.byText[f.Host[at:]]...)
	}
	found = append(found, x.byText[tier]...)
	found = append(found, x.others...)
	return sortRules(keepMatching(found, begin, f, tier), begin)
}

// findNetworks appends the rules that are filed under networks of the address, and match by tier, method,
// host and path. All of found is then in order.
func findNetworks(x *index, f *Facts, tier string, found []*rule) []*rule {
	begin := len(found)
	address := f.Address.Unmap()
	for _, bits := range x.lengths {
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
		// Most rules have few conditions, and a call takes long in the interpreter.
		if (r.row.Tiers == nil || matchesTier(r, tier)) &&
			(r.row.Methods == nil || matchesMethod(r, method)) &&
			(r.hosts == nil || matchesHost(r, f.Host)) && (r.paths == nil || matchesPath(r, f.Path)) {
			found[end] = r
			end++
		}
	}
	return found[:end]
}

// sortRules sorts found[begin:] by place and drops what is there twice, such as a rule with two paths. Most
// requests have few rules.
func sortRules(found []*rule, begin int) []*rule {
	rules := found[begin:]
	for i, r := range rules {
		at := i
		for at > 0 && rules[at-1].place > r.place {
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
