package admin

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"sort"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
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

	Bans []Ban `json:"bans"`
	// Rules have some columns of each rule, whether it applies, and why: why not, or that it matches.
	Rules []Row `json:"rules"`
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
	// Tier is the key's own; nil is that of the user.
	Tier *string `json:"tier"`
}

// byLimit begins the reason of a refusal by a limit.
const byLimit = "limit "

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
	e := &Explanation{At: r.At, AddressAssumed: !r.Address.IsValid(), Bans: []Ban{}, Rules: []Row{}, Limits: []ExplainedLimit{}}
	facts := &policy.Facts{
		Tier: r.Tier, RejectUnknown: !r.AllowUnknown, Address: r.Address.WithZone(""), Method: r.Method,
		Host: policy.NormalHost(r.Host), Route: r.Route, Header: r.Header,
	}
	var err, ambiguous error
	if e.At.IsZero() {
		if e.At, err = d.Now(ctx); err != nil {
			return nil, err
		}
	}
	if e.AddressAssumed {
		facts.Address = AssumedAddress
	}
	facts.Path, ambiguous = policy.NormalPath(r.Path)
	e.Address, e.Path, e.Host = facts.Address.Unmap().String(), facts.Path, facts.Host

	db, err := d.proxyDB()
	if err != nil {
		return nil, err
	}
	defer db.Close()
	id, err := d.identity(ctx, db, r)
	if err != nil {
		return nil, err
	}
	rules, overrides, failedRules := policy.ReadRules(ctx, db)
	networks, failedBans := policy.ReadBans(ctx, db)
	if err := cmp.Or(failedRules, failedBans); err != nil {
		return nil, d.failure(err)
	}
	o, trace := policy.Explain(policy.Compile(rules, overrides, networks, policyOptions), facts, id, e.At)
	if ambiguous != nil {
		o = &policy.Verdict{Tier: r.Tier, Reason: policy.AmbiguousPath, Status: http.StatusBadRequest} // as proxies do, which ask no further
		e.Path = r.Path
	}
	e.Tier, e.Reason, e.Status, e.Rule = o.Tier, o.Reason.String(), o.Status, o.Rule
	if o.User != "" {
		e.User = &o.User
	}
	w := d.work(ctx)
	if e.Key = explainKey(r, id, trace); e.Key != nil {
		for _, tier := range some[*string](w, "SELECT tier FROM rate_limit_api_keys WHERE id = $1", e.Key.ID) {
			e.Key.Tier = tier
		}
	}
	e.Bans, err = d.bans(ctx, "b.network >>= $1::text::inet OR b.user_id = $2 OR b.key_id = $3::bigint", e.Address, o.User, o.KeyID)
	w.fail(err)
	listed, err := d.Rules(ctx)
	w.fail(err)
	e.Rules = explainRules(listed, trace, ambiguous != nil)
	e.Limits, err = d.explainLimits(ctx, db, o)
	w.fail(d.failure(err))
	for i, mark := range trace.Marks {
		if !o.Refused() && !o.Exempt {
			l := limitOf(&trace.Unlimited[i], mark)
			l.Passes = true
			e.Limits = append(e.Limits, l)
		}
	}
	e.conclude(o)
	return e, w.err
}

// conclude sets the result.
func (e *Explanation) conclude(o *policy.Verdict) {
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
			e.Result, e.Reason, e.Status, e.Rule = refused, byLimit+l.Rule+"/"+l.Limit, l.Status, l.Rule
		}
	}
}

// explainKey says what is known of the key of a request.
func explainKey(r *Request, id *policy.Identity, trace *policy.Trace) *ExplainedKey {
	if r.Key == "" && r.KeyID == 0 {
		return nil
	}
	k := &ExplainedKey{ID: id.KeyID, State: "valid"}
	if hint := policy.Hint(r.Key); hint != "" {
		k.Hint = &hint
	}
	switch trace.Key {
	case policy.UnknownKey:
		k.State = "unknown"
	case policy.KeyExpired:
		k.State = "expired"
	case policy.KeyRevoked:
		k.State = "revoked"
	}
	return k
}

// explainRules says whether each rule of a list applies. The trace has those that can have an effect.
func explainRules(listed []Row, trace *policy.Trace, ambiguous bool) []Row {
	traced := map[string]policy.TracedRule{}
	for _, rule := range trace.Rules {
		traced[rule.Name] = rule
	}
	explained := []Row{}
	for i := range listed {
		var x Row
		for _, name := range []string{"name", "action", "mode", "family", "priority"} {
			x.Set(name, listed[i].Get(name))
		}
		problems := listed[i].Get("problems").([]string)
		rule, isTraced := traced[x.Text("name")]
		switch {
		case !isTraced && len(problems) > 0:
			rule.Why = "it cannot be used: " + problems[0]
		case x.Text("mode") == string(policy.Off):
			rule.Applies, rule.Why = false, "mode: off"
		case !isTraced:
			rule.Why = "valid: it has ended"
		case ambiguous:
			rule.Applies, rule.Why = false, "the request is refused before: "+policy.AmbiguousPath.String()
		}
		x.Set("applies", rule.Applies)
		x.Set("why", rule.Why)
		explained = append(explained, x)
	}
	sort.SliceStable(explained, func(i, j int) bool { return explained[i].Get("applies") == true && explained[j].Get("applies") != true })
	return explained
}

// identity returns what proxies know of the sender of a request; nil for nobody.
func (d *Database) identity(ctx context.Context, db pgdb.DB, r *Request) (id *policy.Identity, err error) {
	digest := policy.Digest(r.Key)
	if r.Key == "" && r.KeyID != 0 {
		found, err := value[[]byte](ctx, d, "SELECT digest FROM rate_limit_api_keys WHERE id = $1", r.KeyID)
		if err == nil && found == nil {
			err = noKey(r.KeyID)
		}
		if err != nil {
			return nil, err
		}
		copy(digest[:], *found)
	}
	switch {
	case r.Key != "" || r.KeyID != 0:
		id, err = policy.ReadKey(db, digest)
	case r.User != "":
		id, err = policy.ReadUser(db, r.User)
	}
	return id, d.failure(err)
}
