package policy

import (
	"net/netip"
	"sort"
	"strings"
)

// index finds the rules that may match a request. Each rule is filed under one kind of condition
// (literal paths, hosts, networks or tiers), under every value of that kind: the kind with the fewest
// other rules. A bucket
// is the indexes of rules in ruleSet.rules.
type index struct {
	// paths are by the part before the first wildcard. No such part has more than depth
	// slashes.
	paths map[string][]int32
	depth int
	// hosts are by name. below is by the name with a dot before it, for the names below; no
	// such name has more than labels dots.
	hosts, below map[string][]int32
	labels       int
	tiers        [][]int32 // by number of the tier
	others       []int32

	networks  *networks
	byNetwork [][]int32 // by node
	anywhere  bool      // a rule is filed under its networks
}

// filing is a value that a rule may be filed under.
type filing struct {
	kind string // path, host, network or tier
	text string
}

// filings are the values of a rule, those of one kind together.
func filings(r *rule) [][]filing {
	kinds := make([][]filing, 4)
	for _, p := range r.paths {
		kinds[0] = append(kinds[0], filing{"path", p.literal})
	}
	for _, p := range r.hosts {
		kinds[1] = append(kinds[1], filing{"host", p.name})
	}
	for _, network := range r.networks {
		kinds[2] = append(kinds[2], filing{"network", network.String()})
	}
	for _, tier := range r.row.Tiers {
		kinds[3] = append(kinds[3], filing{"tier", tier})
	}
	return kinds
}

// newIndex files the rules of a set.
func newIndex(set *ruleSet) index {
	x := index{
		paths: make(map[string][]int32), hosts: make(map[string][]int32), below: make(map[string][]int32),
		tiers: make([][]int32, len(set.tiers)+1),
	}
	all := make([][][]filing, len(set.rules))
	count := make(map[filing]int)
	for i := range set.rules {
		all[i] = filings(set.rules[i])
		for _, values := range all[i] {
			for _, value := range values {
				count[value]++
			}
		}
	}
	var filed []netip.Prefix
	var filedRules []int32
	for i := range set.rules {
		r := set.rules[i]
		ruleIndex := int32(i)
		// A kind of bucket is as full as its fullest bucket that this rule is in.
		fewest, kind := len(set.rules)+1, ""
		for _, values := range all[i] {
			most := 0
			for _, value := range values {
				most = larger(most, count[value])
			}
			// Most addresses are in no network, so a network comes before a path or host as full.
			if most > 0 && (most < fewest || most == fewest && values[0].kind == "network") {
				fewest, kind = most, values[0].kind
			}
		}
		switch kind {
		case "path":
			for _, p := range r.paths {
				x.paths[p.literal] = file(x.paths[p.literal], ruleIndex)
				x.depth = larger(x.depth, strings.Count(p.literal, "/"))
			}
			r.pathFiled = len(r.paths) == 1 && r.paths[0].rest && len(r.paths[0].segments) == 0
		case "host":
			for _, p := range r.hosts {
				if p.below {
					x.below[p.name] = file(x.below[p.name], ruleIndex)
					x.labels = larger(x.labels, strings.Count(p.name, "."))
				} else {
					x.hosts[p.name] = file(x.hosts[p.name], ruleIndex)
				}
			}
			r.hostFiled = true
		case "network":
			for _, network := range r.networks {
				filed = append(filed, network)
				filedRules = append(filedRules, ruleIndex)
			}
		case "tier":
			for _, tier := range r.row.Tiers {
				number := set.tiers[tier]
				x.tiers[number] = file(x.tiers[number], ruleIndex)
			}
		default:
			x.others = append(x.others, ruleIndex)
		}
	}
	x.anywhere = len(filed) > 0
	x.networks = newNetworks(filed)
	x.byNetwork = make([][]int32, len(x.networks.nodes))
	for i := range filed {
		node := nodeOf(x.networks, filed[i])
		x.byNetwork[node] = file(x.byNetwork[node], filedRules[i])
	}
	return x
}

func larger(a, b int) int {
	if a > b {
		return a
	}
	return b
}

// file adds a rule to a bucket that does not have it yet.
func file(bucket []int32, ruleIndex int32) []int32 {
	if len(bucket) > 0 && bucket[len(bucket)-1] == ruleIndex {
		return bucket
	}
	return append(bucket, ruleIndex)
}

// findRules appends to found, in order, the rules that match a request by tier, method, host
// and path. Rules that are filed under networks are not among them.
func findRules(set *ruleSet, tier int32, method uint64, host, path string, found []int32) []int32 {
	x := &set.index
	begin := len(found)
	if len(x.paths) > 0 {
		whole := path
		if strings.IndexByte(path, '\\') >= 0 {
			whole = slashed(path) // what precedes a wildcard is the same in both readings
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
	if len(x.hosts) > 0 {
		found = append(found, x.hosts[host]...)
	}
	if x.labels > 0 {
		at := len(host)
		for dots := 0; dots < x.labels && at > 1; dots++ {
			at = strings.LastIndexByte(host[:at], '.')
			if at < 1 {
				break
			}
			found = append(found, x.below[host[at:]]...)
		}
	}
	if tier == anyTier {
		for _, bucket := range x.tiers {
			found = append(found, bucket...)
		}
	} else {
		found = append(found, x.tiers[tier]...)
	}
	found = append(found, x.others...)
	return keepMatching(set, found, begin, tier, method, host, path)
}

// keepMatching keeps, of the rules in found[begin:], those that match by tier, method,
// host and path, and sorts them.
func keepMatching(set *ruleSet, found []int32, begin int, tier int32, method uint64, host, path string) []int32 {
	end := begin
	for _, ruleIndex := range found[begin:] {
		r := set.rules[ruleIndex]
		if r.tiers != nil && tier != anyTier && r.tiers[tier/64]>>uint(tier%64)&1 == 0 || r.methods != 0 && r.methods&method == 0 ||
			r.hosts != nil && !r.hostFiled && !matchesHost(r, host) || r.paths != nil && !(r.pathFiled && r.row.Action != Exempt) && !matchesPath(r, path) {
			continue
		}
		found[end] = ruleIndex
		end++
	}
	found = found[:end]
	if end-begin < 2 {
		return found
	}
	return sortRules(found, begin)
}

func matchesHost(r *rule, host string) bool {
	for i := range r.hosts {
		if hostMatches(r.hosts[i], host) {
			return true
		}
	}
	return false
}

// matchesPath reports whether a rule matches a path as NormalPath returns it.
func matchesPath(r *rule, path string) bool {
	if strings.IndexByte(path, '\\') < 0 {
		return matchesReading(r, path)
	}
	if r.row.Action == Exempt {
		return matchesReading(r, path) && matchesReading(r, slashed(path))
	}
	return matchesReading(r, path) || matchesReading(r, slashed(path))
}

func matchesReading(r *rule, path string) bool {
	for i := range r.paths {
		if pathMatches(r.paths[i], path) {
			return true
		}
	}
	return false
}

// findNetworks appends the rules that are filed under a network or the networks around it, and
// match by tier, method, host and path. All of found is then in order.
func findNetworks(set *ruleSet, node, tier int32, method uint64, f *Facts, found []int32) []int32 {
	begin := len(found)
	for ; node >= 0; node = set.index.networks.parents[node] {
		found = append(found, set.index.byNetwork[node]...)
	}
	return sortRules(keepMatching(set, found, begin, tier, method, f.Host, f.Path), 0)
}

// sortRules sorts found[begin:] and drops what is there twice, such as a rule with two paths. Most
// requests have few rules.
func sortRules(found []int32, begin int) []int32 {
	indexes := found[begin:]
	if len(indexes) > 64 {
		sort.Slice(indexes, func(i, j int) bool { return indexes[i] < indexes[j] })
	}
	end := begin
	for i, ruleIndex := range indexes {
		at := i
		for at > 0 && indexes[at-1] > ruleIndex {
			indexes[at] = indexes[at-1]
			at--
		}
		indexes[at] = ruleIndex
	}
	for i, ruleIndex := range indexes {
		if i == 0 || ruleIndex != indexes[i-1] {
			found[end] = ruleIndex
			end++
		}
	}
	return found[:end]
}
