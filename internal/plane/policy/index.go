package policy

import (
	"net/netip"
	"sort"
	"strings"
)

// index finds the rules that may match a request. Each rule is filed under one kind of condition, under every
// value of that kind: the kind with the fewest other rules.
type index struct {
	paths, hosts, below, tiers map[string][]*rule // see kind
	others                     []*rule            // rules without such conditions
	depth                      int                // no path that a rule is filed under has more slashes
	labels                     int                // no host below which a rule is filed has more dots

	networks map[netip.Prefix][]*rule
	lengths  networkLengths // of these
}

// filing is a value that a rule may be filed under.
type filing struct {
	kind    kind
	text    string
	network netip.Prefix
}

// kind is a kind of value.
type kind uint8

const (
	ofPath    kind = iota // the part of a path before the first wildcard
	ofHost                // the name of a host
	belowHost             // the name of a host with a dot before it, for the names below
	ofNetwork
	ofTier
)

// filings are the values of a rule, those of one kind together.
func filings(r *rule) [][]filing {
	kinds := make([][]filing, 4)
	for _, p := range r.paths {
		kinds[0] = append(kinds[0], filing{kind: ofPath, text: p.literal})
	}
	for _, p := range r.hosts {
		if p.below {
			kinds[1] = append(kinds[1], filing{kind: belowHost, text: p.name})
		} else {
			kinds[1] = append(kinds[1], filing{kind: ofHost, text: p.name})
		}
	}
	for _, network := range r.networks {
		kinds[2] = append(kinds[2], filing{kind: ofNetwork, network: network})
	}
	for _, tier := range r.row.Tiers {
		kinds[3] = append(kinds[3], filing{kind: ofTier, text: tier})
	}
	return kinds
}

// newIndex files rules, which are in the order in which they are tried.
func newIndex(rules []*rule) *index {
	x := &index{
		paths: make(map[string][]*rule), hosts: make(map[string][]*rule), below: make(map[string][]*rule),
		tiers: make(map[string][]*rule), networks: make(map[netip.Prefix][]*rule),
	}
	all := make([][][]filing, len(rules))
	count := make(map[filing]int)
	for i := range rules {
		all[i] = filings(rules[i])
		for _, values := range all[i] {
			for _, value := range values {
				count[value]++
			}
		}
	}
	for i, r := range rules {
		// A kind of bucket is as full as its fullest bucket that this rule is in.
		fewest := len(rules) + 1
		var chosen []filing
		for _, values := range all[i] {
			most := 0
			for _, value := range values {
				most = larger(most, count[value])
			}
			// Most addresses are in no network, so a network comes before a path or host as full.
			if most > 0 && (most < fewest || most == fewest && values[0].kind == ofNetwork) {
				fewest = most
				chosen = values
			}
		}
		x.file(r, chosen)
	}
	return x
}

// file files a rule under values of one kind.
func (x *index) file(r *rule, values []filing) {
	if len(values) == 0 {
		x.others = append(x.others, r)
		return
	}
	for _, value := range values {
		switch value.kind {
		case ofPath: // of a path with other wildcards, the index has only the beginning
			p := r.paths[0]
			r.pathFiled = len(r.paths) == 1 && p.rest && len(p.segments) == 0 && r.row.Action != Exempt
			x.paths[value.text] = append(x.paths[value.text], r)
			x.depth = larger(x.depth, strings.Count(value.text, "/"))
		case ofHost:
			r.hostFiled = true
			x.hosts[value.text] = append(x.hosts[value.text], r)
		case belowHost:
			r.hostFiled = true
			x.below[value.text] = append(x.below[value.text], r)
			x.labels = larger(x.labels, strings.Count(value.text, "."))
		case ofNetwork:
			x.networks[value.network] = append(x.networks[value.network], r)
			x.lengths.add(value.network)
		case ofTier:
			r.tierFiled = true
			x.tiers[value.text] = append(x.tiers[value.text], r)
		}
	}
}

func larger(a, b int) int {
	if a > b {
		return a
	}
	return b
}

func smaller(a, b int) int { return -larger(-a, -b) }

// findRules appends to found, in order, the rules that match a request by tier, method, host
// and path. Rules that are filed under networks are not among them.
func findRules(x *index, f *Facts, tier string, found []*rule) []*rule {
	begin := len(found)
	if len(x.paths) > 0 {
		whole := f.Path
		if strings.IndexByte(whole, '\\') >= 0 {
			whole = slashed(whole) // what precedes a wildcard is the same in both readings
		}
		found = append(found, x.paths[""]...)
		at := 0
		for slashes := 0; slashes < x.depth && at < len(whole); slashes++ {
			next := strings.IndexByte(whole[at+1:], '/')
			if next < 0 {
				at = len(whole)
			} else {
				at += next + 1
			}
			found = append(found, x.paths[whole[:at]]...)
		}
	}
	found = append(found, x.hosts[f.Host]...)
	at := len(f.Host)
	for dots := 0; dots < x.labels && at > 1; dots++ {
		at = strings.LastIndexByte(f.Host[:at], '.')
		if at < 1 {
			break
		}
		found = append(found, x.below[f.Host[at:]]...)
	}
	found = append(found, x.tiers[tier]...)
	found = append(found, x.others...)
	return sortRules(keepMatching(found, begin, f, tier), begin)
}

// findNetworks appends the rules that are filed under networks of the address, and match by tier, method,
// host and path. All of found is then in order.
func findNetworks(x *index, f *Facts, tier string, found []*rule) []*rule {
	begin := len(found)
	address := plainAddress(f.Address)
	for _, bits := range lengthsFor(&x.lengths, address) {
		network, _ := address.Prefix(bits) // of a length that such an address has
		found = append(found, x.networks[network]...)
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
		if !r.tierFiled && !matchesTier(r, tier) || !matchesMethod(r, method) ||
			!r.hostFiled && !matchesHost(r, f.Host) || !r.pathFiled && !matchesPath(r, f.Path) {
			continue
		}
		found[end] = r
		end++
	}
	return found[:end]
}

// sortRules sorts found[begin:] by place and drops what is there twice, such as a rule with two paths. Most
// requests have few rules.
func sortRules(found []*rule, begin int) []*rule {
	rules := found[begin:]
	if len(rules) > 64 {
		sort.Slice(rules, func(i, j int) bool { return rules[i].place < rules[j].place })
	}
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
