package admin

import (
	"context"
	"net/http"
	"net/netip"
	"sort"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// Request is a request as a proxy sees it. At most one of Key, KeyID and User is set.
type Request struct {
	Key   string // an API key; it is not stored
	KeyID int64  // the same by its id
	User  string // a user that the proxy authenticated

	// Tier is that of requests without a user.
	Tier string
	// AllowUnknown takes a request with an unknown key for one without a key. Otherwise
	// it is refused.
	AllowUnknown bool

	// Address is the client's; the zero Addr is AssumedAddress.
	Address netip.Addr
	Method  string
	// Host and Path are as in the request.
	Host, Path string
	Route      string
	Header     http.Header
	// At is when the request comes; the zero time is now, by the clock of the server.
	At time.Time
}

// AssumedAddress is the client's address if none is given: rules that count by it would otherwise not
// match, and all requests have one. It is of a network for documentation, so few rules name it.
var AssumedAddress = netip.MustParseAddr("203.0.113.1")

// Explanation is what the policy does with a request, and why.
type Explanation struct {
	At   time.Time `json:"at"`
	User *string   `json:"user"`
	Tier string    `json:"tier"`
	// Key says what is known of the API key; nil without one.
	Key *ExplainedKey `json:"key"`
	// Result is "refused", "exempt", "limited" or "free".
	Result string `json:"result"`
	// Reason and Status are of a refusal by the policy or, as far as is known now, by a
	// limit that has not enough left.
	Reason string `json:"reason"`
	Status int    `json:"status"`
	Rule   string `json:"rule"`
	// Address is the client's. AddressAssumed: it is AssumedAddress, because none was given.
	Address        string `json:"address"`
	AddressAssumed bool   `json:"address_assumed"`
	// Path and Host are as rules see them. An ambiguous path is as it was given.
	Path string `json:"path"`
	Host string `json:"host"`

	Bans  []Ban           `json:"bans"`
	Rules []ExplainedRule `json:"rules"`
	// Limits are those that the request is charged to.
	Limits []ExplainedLimit `json:"limits"`
}

// ExplainedKey is what is known of the API key of a request.
type ExplainedKey struct {
	// ID is 0 for an unknown key.
	ID   int64   `json:"id"`
	Hint *string `json:"hint"`
	// State is valid, expired, revoked or unknown.
	State string `json:"state"`
}

// ExplainedRule says whether a rule applies to a request.
type ExplainedRule struct {
	Name   string `json:"name"`
	Action string `json:"action"`
	Mode   string `json:"mode"`
	// Family is nil for a rule that stands alone.
	Family   *string `json:"family"`
	Priority int64   `json:"priority"`
	Applies  bool    `json:"applies"`
	// Why says why not, or that the rule matches.
	Why string `json:"why"`
}

// The results of an Explanation.
const (
	refused = "refused"
	exempt  = "exempt"
	limited = "limited"
	free    = "free"
)

// Explain says what the policy does with a request, by the packages that the proxies use. It
// charges nothing. The bans and identities are those of now.
func (d *Database) Explain(ctx context.Context, r *Request) (*Explanation, error) {
	now := r.At
	if now.IsZero() {
		var err error
		if now, err = d.Now(ctx); err != nil {
			return nil, err
		}
	}
	address := r.Address.WithZone("")
	if !address.IsValid() {
		address = AssumedAddress
	}
	path, ambiguous := policy.NormalPath(r.Path)
	facts := &policy.Facts{
		Tier: r.Tier, RejectUnknown: !r.AllowUnknown, Address: address, Method: r.Method,
		Host: policy.NormalHost(r.Host), Path: path, Route: r.Route, Header: r.Header,
	}
	db, err := d.proxyDB()
	if err != nil {
		return nil, err
	}
	defer db.Close()
	id, err := d.identity(ctx, db, r)
	if err != nil {
		return nil, err
	}
	rules, overrides, err := policy.ReadRules(ctx, db)
	if err != nil {
		return nil, d.failure(err)
	}
	networks, err := policy.ReadBans(ctx, db)
	if err != nil {
		return nil, d.failure(err)
	}
	var o policy.Outcome
	if ambiguous != nil {
		o = policy.Outcome{Tier: r.Tier, Reason: policy.AmbiguousPath, Status: http.StatusBadRequest} // as proxies do, which ask no further
		path = r.Path
	} else {
		policy.Decide(policy.Compile(rules, overrides, networks, policyOptions), facts, id, now, &o)
	}
	q := newInquiry(facts, id, now, &o)

	e := &Explanation{At: now, Tier: o.Tier, Reason: o.Reason.String(), Status: o.Status, Rule: o.Rule, Address: addressText(address), AddressAssumed: !r.Address.IsValid(), Path: path, Host: facts.Host,
		Key: explainKey(r, id, now), Bans: []Ban{}, Rules: []ExplainedRule{}, Limits: []ExplainedLimit{}}
	if o.User != "" {
		e.User = &o.User
	}
	if e.Bans, err = d.bans(ctx, "b.network >>= $1::text::inet OR b.user_id = $2 OR b.key_id = $3::bigint", e.Address, o.User, o.KeyID); err != nil {
		return nil, err
	}
	listed, err := d.Rules(ctx)
	if err != nil {
		return nil, err
	}
	e.Rules = explainRules(q, listed, rules, &o)
	if e.Limits, err = explainLimits(ctx, db, &o); err != nil {
		return nil, d.failure(err)
	}
	if !o.Refused() && !o.Exempt {
		e.Limits = append(e.Limits, q.unlimited(rules, overrides, &o)...)
	}
	e.conclude(&o)
	return e, nil
}

// conclude sets the result.
func (e *Explanation) conclude(o *policy.Outcome) {
	switch {
	case o.Refused():
		e.Result = refused
		return
	case o.Exempt:
		e.Result = exempt
		return
	}
	e.Result = free
	for i := range e.Limits {
		l := &e.Limits[i]
		if !l.Shadow && e.Result == free {
			e.Result = limited
		}
		if l.refuses() && e.Result != refused {
			e.Result, e.Reason, e.Status, e.Rule = refused, "limit "+l.Rule+"/"+l.Limit, l.Status, l.Rule
		}
	}
}

// explainKey says what is known of the key of a request.
func explainKey(r *Request, id *policy.Identity, now time.Time) *ExplainedKey {
	if r.Key == "" && r.KeyID == 0 {
		return nil
	}
	var o policy.Outcome
	policy.Decide(policy.Compile(nil, nil, nil, policyOptions), &policy.Facts{RejectUnknown: true}, copyOf(id), now, &o)
	k := &ExplainedKey{ID: id.KeyID, State: "valid"}
	if hint := policy.Hint(r.Key); hint != "" {
		k.Hint = &hint
	}
	switch o.Reason {
	case policy.UnknownKey:
		k.State = "unknown"
	case policy.KeyExpired:
		k.State = "expired"
	case policy.KeyRevoked:
		k.State = "revoked"
	}
	return k
}

// explainRules says whether each rule of a list applies. read are the rules that can have an
// effect.
func explainRules(q *inquiry, listed []Rule, read []policy.Rule, o *policy.Outcome) []ExplainedRule {
	byName := map[string]*policy.Rule{}
	for i := range read {
		byName[read[i].Name] = &read[i]
	}
	taken := map[string]string{} // the rule that applies, by family
	var explained []ExplainedRule
	for i := range listed {
		row := &listed[i]
		x := ExplainedRule{Name: row.Name, Action: row.Action, Mode: row.Mode, Family: row.Family, Priority: row.Priority}
		r := byName[row.Name]
		switch {
		case len(row.Problems) > 0 && (r == nil || r.Err != nil || !q.usable(r)):
			x.Why = "it cannot be used: " + row.Problems[0]
		case row.Mode == policy.Off.String():
			x.Why = "mode: off"
		case r == nil:
			x.Why = "valid: it has ended"
		case q.facts.Path == "": // it is ambiguous for every rule
			x.Why = "the request is refused before: " + o.Reason.String()
		default:
			x.Why = q.unmet(r)
			switch {
			case x.Why != "":
			case o.Reason != policy.NotRefused && o.Reason != policy.Blocked && o.Reason != policy.NoQuota:
				x.Why = "the request is refused before: " + o.Reason.String()
			case r.Mode != policy.Shadow && (o.Exempt || o.Reason == policy.Blocked) && row.Name != o.Rule,
				r.Mode == policy.Shadow && (o.Exempt || o.Reason == policy.Blocked) && !isBefore(listed, row.Name, o.Rule):
				x.Why = "the rule " + o.Rule + " comes first"
			case r.Action == policy.Charge && r.Family != "" && taken[r.Family] != "":
				x.Why = "family " + r.Family + ": the rule " + taken[r.Family] + " comes first"
			default:
				x.Applies = true
				x.Why = "matches"
				if r.Mode == policy.Shadow {
					x.Why = "matches, in the shadow"
				} else if r.Action == policy.Charge {
					taken[r.Family] = row.Name
				}
			}
		}
		explained = append(explained, x)
	}
	sort.SliceStable(explained, func(i, j int) bool { return explained[i].Applies && !explained[j].Applies })
	return explained
}

// isBefore reports whether a rule comes before another one in a list.
func isBefore(listed []Rule, name, other string) bool {
	for i := range listed {
		if listed[i].Name == other {
			return false
		}
		if listed[i].Name == name {
			return true
		}
	}
	return false
}

// usable reports whether proxies can use a rule.
func (q *inquiry) usable(r *policy.Rule) bool {
	return len(policy.Compile([]policy.Rule{*r}, nil, nil, policyOptions).Wrong()) == 0
}
