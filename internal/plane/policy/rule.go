package policy

import (
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
)

// Action is the effect of a rule on the requests that it matches, as in the column rate_limit_rules.action.
type Action string

const (
	// ActionLimit takes the limits of the rule. The action "" means ActionLimit.
	ActionLimit Action = "limit"
	// ActionBlock refuses the request.
	ActionBlock Action = "block"
	// ActionExempt frees the request from all limits of the policy.
	ActionExempt Action = "exempt"
)

// Rule is a row of rate_limit_rules with its limits. An empty list of conditions matches every request.
type Rule struct {
	// Name identifies the rule. Required.
	Name string
	// CountedAs, unless it is "", is the name by which the rule counts in place of Name.
	CountedAs string `json:"counted_as"`
	// Family names a group of rules. At most one rule of a family applies to a request. "" means no family.
	Family string
	// Priority orders rules with the same action. Rules with higher priority come first.
	Priority int64
	// Mode determines whether the rule has an effect. "" means option.Enforce. A shadow rule does not
	// exempt.
	Mode   option.Mode
	Action Action

	// Hosts are names without a port, in upper or lower case. "*.example.com" matches every name below
	// example.com.
	Hosts []string
	// Paths begin with "/". A segment "*" matches any one segment. As the last segment, "*" matches any
	// number of segments: "/api/*" matches "/api", "/api/" and "/api/v1/x".
	Paths []string
	// Methods are names such as "GET", in upper or lower case.
	Methods []string
	// Tiers are the tiers of senders.
	Tiers []string
	// Networks are networks of client addresses. IPv4 addresses in IPv6 form count as IPv4.
	Networks []netip.Prefix

	// CountBy determines the key of the rule's counters. Its elements are "user", "key", "tier", "ip" (see
	// NetworkOf), "ip/128", "host", "route" and "header:NAME". Alternatives such as "user|ip" use the first
	// that the request has. The element "all", which must be the only one, is one counter for all requests.
	// Empty means "user".
	CountBy []string `json:"count_by"`
	// WithoutHeader is for requests in which a header of CountBy is missing or empty: with WithoutShare or
	// "", they share one counter, with WithoutSkip the rule does not apply, and WithoutRefuse refuses them.
	WithoutHeader option.Without `json:"without_header"`

	// The rule is valid from From until before Until, in microseconds since the Unix epoch. 0 sets no bound.
	From, Until int64

	// Cost is the charge of a request to each limit of requests. 0 means 1.
	Cost int64
	// Settle describes how to read the actual cost from the response: see option.ParseCostSource. "" means
	// Cost.
	Settle string
	// Status is the HTTP status of a refusal, from 400 to 599. 0 means 429 for limits, and 403 for a block
	// rule.
	Status int
	// Message is the body of a refusal. "" means the proxy's own text.
	Message string
	// RetryAfter is sent with a refusal. For limits, 0 means the time until the request would pass. For a
	// block rule, 0 sends no Retry-After.
	RetryAfter time.Duration

	// Limits has the limits of a rule with the action ActionLimit, at least one.
	Limits []RuleLimit

	// Newer has the columns by which only newer programs match the rule. The rule is then unusable.
	Newer string

	// Err, if not nil, is the error of decoding the row. Compile then reports the rule instead of using it.
	Err error `json:"-"`
}

// Facts holds the properties of a request that rules evaluate.
type Facts struct {
	// DefaultTier is the tier of a request if its identity has none, such as "anonymous".
	DefaultTier string
	// RejectUnknown refuses requests with an unknown, expired or revoked API key. Otherwise such requests
	// count as anonymous.
	RejectUnknown bool
	// NeedsKey refuses requests that count as anonymous, except those that an exempt rule matches.
	NeedsKey bool
	// Address is the client's address, without a zone, and IPv4 if it is an IPv4-mapped address. See
	// ClientOf. The zero Addr means that the address is unknown: see matchesNetwork.
	Address netip.Addr
	// AddressAssumed reports that Address is the connection's address, because the header for the client's
	// address is missing. See matchesNetwork.
	AddressAssumed bool
	Method         string
	// Host and Path are results of NormalHost and NormalPath.
	Host, Path string
	// Route is the proxy's name for the route of the request. "" means none. Routes has all names if there
	// are several.
	Route  string
	Routes []string
	// HTTP is the request, for what the other fields do not have, such as headers. Nil has none. Its method,
	// host and path can differ from those above.
	HTTP *http.Request
	// Key is the API key.
	Key string
	// Preflight reports that the request is a CORS preflight, in which a browser sends no headers of its own.
	Preflight bool
	// KeyHeaders are the canonical names of the headers that may have the API key. A counter key with the
	// value of such a header is a secret, so it is stored as a digest, as with option.CredentialHeader.
	KeyHeaders []string
	// Waited is set by Policy.Evaluate if the request has waited for the first rules.
	Waited bool
}

// SetRoutes sets the route from the values of its placeholder. nil stands for more than MaxValues.
func (f *Facts) SetRoutes(values []string) {
	f.Routes = nil
	f.Route = severalValues
	if len(values) > 0 {
		f.Route = values[0]
	}
	if len(values) > 1 {
		f.Routes = values
	}
}

// A new condition needs a field of Rule, and a line in compileConditions, in keepMatching, and in
// unmetConditions. If the memo cannot store the condition's result, the line is in matchesNow instead of
// keepMatching, and compileConditions sets dynamic. A fact that HTTP lacks is a field of Facts, which package
// serve sets.

// compileConditions compiles the conditions of a rule.
func (r *rule) compileConditions() error {
	row := &r.row
	var methods []string
	for _, method := range row.Methods {
		methods = append(methods, strings.ToUpper(method))
	}
	row.Methods = methods
	r.methods = methods
	if row.Action != ActionExempt && contains(methods, "GET") {
		r.methods = append([]string{"HEAD"}, methods...)
	}
	for _, host := range row.Hosts {
		p, err := parseHost(host)
		if err != nil {
			return err
		}
		r.hosts = append(r.hosts, p)
	}
	everywhere := false // one of the paths is /*
	for _, path := range row.Paths {
		p, err := parsePath(path)
		if err != nil {
			return err
		}
		r.paths = append(r.paths, p)
		folded, _ := parsePath(option.LowerASCII.Replace(path))
		r.folded = append(r.folded, folded)
		everywhere = everywhere || p.rest && p.literal == "" && len(p.segments) == 0
	}
	if everywhere {
		r.paths = nil
		r.folded = nil
	} else {
		r.endpoint = strings.Join(row.Paths, " ")
	}
	networks := row.Networks
	row.Networks = nil
	for _, network := range networks {
		row.Networks = append(row.Networks, normalNetwork(network))
	}
	r.dynamic = row.Networks != nil || row.From != 0 || row.Until != 0
	return nil
}

// permits reports whether a list of tiers or methods has a name. The empty list has all names.
func permits(names []string, name string) bool { return len(names) == 0 || contains(names, name) }

func contains(names []string, name string) bool {
	for i := range names {
		if names[i] == name {
			return true
		}
	}
	return false
}

func matchesHost(r *rule, host string) bool {
	for _, name := range r.hosts {
		if host == name || name[0] == '*' && len(host) >= len(name) && strings.HasSuffix(host, name[1:]) {
			return true
		}
	}
	return len(r.hosts) == 0
}

// matchesPath reports whether a rule matches a normal path: an exempt rule narrowly, and any other rule
// widely, which is without case and in one of the readings of a backslash (see NormalPath).
func matchesPath(r *rule, path string) bool {
	if r.row.Action == ActionExempt {
		return matchesExactly(r, path)
	}
	path = option.LowerASCII.Replace(path)
	return matchesReading(r.folded, path) ||
		strings.IndexByte(path, '\\') >= 0 && matchesReading(r.folded, backslashAsSlash(path))
}

// matchesExactly reports whether a rule matches a normal path with its case, in both readings of a backslash.
func matchesExactly(r *rule, path string) bool {
	return matchesReading(r.paths, path) &&
		(strings.IndexByte(path, '\\') < 0 || matchesReading(r.paths, backslashAsSlash(path)))
}

// takesFamily reports whether a rule of a family takes the place of the other rules in its family. It does
// so if it matches the method, the network and the path narrowly, as an exempt rule does. A rule that matches
// only widely is charged in addition, because the server may answer such a request as another rule expects.
func takesFamily(r *rule, f *Facts) bool {
	return (r.row.Methods == nil || contains(r.row.Methods, strings.ToUpper(f.Method))) &&
		(r.row.Networks == nil || !f.Address.IsValid() || ContainsAddress(r.row.Networks, f.Address)) &&
		(r.paths == nil || matchesExactly(r, f.Path))
}

// keepMatching removes from rules[start:] the rules that do not match by tier, method, host and path.
func keepMatching(rules []*rule, start int, f *Facts, tier string) []*rule {
	method := strings.ToUpper(f.Method)
	end := start
	for _, r := range rules[start:] {
		// The nil checks avoid calls, which are slow in the interpreter: most rules have few conditions.
		if (r.row.Tiers == nil || permits(r.row.Tiers, tier)) &&
			(r.methods == nil || permits(r.methods, method)) &&
			(r.hosts == nil || matchesHost(r, f.Host)) && (r.paths == nil || matchesPath(r, f.Path)) {
			rules[end] = r
			end++
		}
	}
	return rules[:end]
}

func matchesReading(patterns []*pathPattern, path string) bool {
	for i := range patterns {
		if pathMatches(patterns[i], path) {
			return true
		}
	}
	return len(patterns) == 0
}

// matchesNow reports whether a rule matches by the conditions with results that the memo cannot store: time
// and network.
func matchesNow(r *rule, f *Facts, at int64) bool {
	return at >= r.row.From && at < r.until && matchesNetwork(r, f)
}

var (
	everyIPv4 = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	everyIPv6 = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
)

// matchesNetwork reports whether a network of the rule contains the client's address, or the rule has no
// networks. An assumed address may belong to a load balancer and must not free a request from limits, so it
// matches no exempt rule and no rule of a family. For a rule that restricts, the networks of an address of
// NAT64 are also those of the IPv4 address in it, and an unknown address is in a network if the rule has
// both networks of all addresses.
func matchesNetwork(r *rule, f *Facts) bool {
	if r.row.Networks == nil {
		return true
	}
	if f.AddressAssumed &&
		(r.row.Action == ActionExempt || r.row.Action == ActionLimit && r.row.Family != "") {
		return false
	}
	if ContainsAddress(r.row.Networks, f.Address) {
		return true
	}
	if r.row.Action == ActionExempt {
		return false
	}
	if !f.Address.IsValid() {
		return containsNetwork(r.row.Networks, everyIPv4) && containsNetwork(r.row.Networks, everyIPv6)
	}
	return ContainsAddress(r.row.Networks, ClientOf(f.Address))
}

// ContainsAddress reports whether one of networks contains an address, as in Facts. None has the zero Addr.
func ContainsAddress(networks []netip.Prefix, address netip.Addr) bool {
	for _, network := range networks {
		if network.Contains(address) {
			return true
		}
	}
	return false
}

func containsNetwork(networks []netip.Prefix, one netip.Prefix) bool {
	for _, network := range networks {
		if network == one {
			return true
		}
	}
	return false
}

// unmetConditions describes the conditions of a rule that a request does not meet, such as "methods: not
// GET". unmetConditions returns "" if the request meets all conditions.
func unmetConditions(r *rule, f *Facts, state *senderState, at int64, v *Verdict) string {
	var unmet []string
	check := func(condition string, met bool, has string) {
		switch {
		case met:
		case has == "":
			unmet = append(unmet, condition+": the request has none")
		default:
			unmet = append(unmet, condition+": not "+has)
		}
	}
	check("valid", at >= r.row.From && at < r.until, "at this time")
	check("tiers", permits(r.row.Tiers, v.Tier), v.Tier)
	check("networks", matchesNetwork(r, f), addressText(f.Address))
	check("methods", permits(r.methods, strings.ToUpper(f.Method)), f.Method)
	check("hosts", matchesHost(r, f.Host), f.Host)
	check("paths", matchesPath(r, f.Path), f.Path)
	if r.row.Action == ActionLimit {
		user := state.user
		if user == "" {
			user = anonymousText(f.Address)
		}
		keys, _, missing := counterKeys(&r.countBy, f, user, state.key, v.Tier)
		name := "user"
		if len(r.row.CountBy) > 0 {
			name = r.row.CountBy[missing]
		}
		if keys == nil {
			unmet = append(unmet, "count_by: no "+name)
		}
	}
	return strings.Join(unmet, "; ")
}

// Conditions matches requests by host, path and method in the same way as a rule, for limits outside the
// policy. It is immutable.
type Conditions struct{ rule *rule }

// NewConditions compiles conditions. An empty list matches all requests. The error is a
// *ratelimit.FieldError.
func NewConditions(hosts, paths, methods []string) (*Conditions, error) {
	row := Rule{Name: "match", Action: ActionBlock, Hosts: hosts, Paths: paths, Methods: methods}
	r, err := compileRule(&row)
	if err != nil {
		return nil, err
	}
	return &Conditions{r}, nil
}

// Match reports whether the conditions match a request. escaped is the path as it was sent. If servers may
// read the path differently (see NormalPath), the request matches if any reading matches, or if the readings
// cannot be determined. Otherwise a client could choose which limits apply.
func (c *Conditions) Match(method, host, escaped string) bool {
	if !permits(c.rule.methods, strings.ToUpper(method)) || !matchesHost(c.rule, NormalHost(host)) {
		return false
	}
	path := NormalPath(escaped)
	if path == "" || matchesPath(c.rule, path) {
		return true
	}
	for _, without := range withoutParameters(path) {
		if matchesPath(c.rule, without) {
			return true
		}
	}
	return false
}
