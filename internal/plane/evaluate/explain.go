// Package evaluate decides requests for people, with the code of the proxies: a request that somebody
// describes (explain.go), and recorded requests again with other limits (replay.go). It charges and
// changes nothing. Commands print the structs of its results.
package evaluate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sort"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// Request is a request as a proxy sees it. At most one of Key, KeyID and User is set.
type Request struct {
	Key   string // an API key; it is not stored
	KeyID int64  // the same by its id
	User  string // a user that the proxy authenticated

	// Facts has the other facts. A Tier is that of requests without a user. Host and Path are as in the
	// request, and the zero Address is AssumedAddress.
	policy.Facts
	// At is when the request comes.
	At time.Time
}

// AssumedAddress is the client's address if none is given: rules that count by it would otherwise not
// match. It is of a network for documentation, so few rules name it.
var AssumedAddress = netip.MustParseAddr("203.0.113.1")

// ErrNoKey is that no API key has the KeyID of a Request.
var ErrNoKey = errors.New("no key has this id, see: caddy pg-ratelimit keys list")

// Explanation says what the policy does with a request, and why.
type Explanation struct {
	// Result says it as the end of a sentence. Outcome is refused, exempt, limited or free.
	Result  string    `json:"result"`
	Outcome string    `json:"outcome"`
	At      time.Time `json:"at"`
	// KeyID and Key are of the API key: valid, expired, revoked or unknown. nil: none was given.
	KeyID *int64  `json:"key_id"`
	Key   *string `json:"key"`
	User  *string `json:"user"`
	Tier  string  `json:"tier"`
	// Reason, Status and Rule are of a refusal.
	Reason *string `json:"reason"`
	Status *int    `json:"status"`
	Rule   *string `json:"rule"`
	// Address is the client's. AddressAssumed is true or nil: it is AssumedAddress.
	Address        string `json:"address"`
	AddressAssumed *bool  `json:"address_assumed"`
	// Path and Host are as rules see them. An ambiguous path is as it was given.
	Path string `json:"path"`
	Host string `json:"host"`

	Rules []Rule `json:"rules"`
	// Limits are those that the request is charged to.
	Limits []Limit `json:"limits"`
}

// Rule is a rule, whether it applies, and why: why not, or that it matches.
type Rule struct {
	Name     string  `json:"name"`
	Action   string  `json:"action"`
	Family   *string `json:"family"`
	Priority int64   `json:"priority"`
	Mode     string  `json:"mode"`
	Applies  bool    `json:"applies"`
	Why      string  `json:"why"`
}

// Limit is a limit that a request is charged to.
type Limit struct {
	Limit string `json:"limit"` // RULE/LIMIT
	// CountedFor is the key of the counter.
	CountedFor string `json:"counted_for"`
	// Amount is nil for unlimited, and From where it comes from: rule, tier, user or key.
	Amount    *int64 `json:"amount"`
	From      string `json:"from"`
	Window    string `json:"window"`
	Algorithm string `json:"algorithm"`
	Cost      int64  `json:"cost"`
	// Settle says what a request really costs; nil is Cost.
	Settle *string `json:"settle"`
	// Left is the rest of the amount now, and below 0 the use beyond it.
	Left *int64 `json:"left"`
	// Resets is ratelimit.Decision.Reset; nil for unlimited, and if the request can never pass.
	// RetryAfter is in seconds, and nil if the request would pass now, or never.
	Resets     *time.Time `json:"resets"`
	RetryAfter *float64   `json:"retry_after"`
	Would      string     `json:"would"`

	rule    string
	status  int
	refuses bool
	shadow  bool
}

// Explain says what the policy does with a request. conn and db are connections to the same database.
// The bans and identities are those of now.
func Explain(ctx context.Context, conn *pgx.Conn, db *pgxdb.DB, r *Request) (*Explanation, error) {
	facts := r.Facts
	facts.Host, facts.Address = policy.NormalHost(r.Host), r.Address.WithZone("")
	e := &Explanation{At: r.At, AddressAssumed: given(!r.Address.IsValid()), Host: facts.Host}
	if e.AddressAssumed != nil {
		facts.Address = AssumedAddress
	}
	var ambiguous error
	facts.Path, ambiguous = policy.NormalPath(r.Path)
	e.Address, e.Path = facts.Address.Unmap().String(), facts.Path
	id, err := identity(ctx, conn, db, r)
	if err != nil {
		return nil, err
	}
	snapshot, err := policy.ReadSnapshot(ctx, db)
	if err != nil {
		return nil, err
	}
	o, trace := policy.Explain(snapshot, &facts, id, e.At)
	if ambiguous != nil { // proxies ask no further
		o = &policy.Verdict{Tier: r.Tier, Reason: policy.AmbiguousPath, Status: http.StatusBadRequest}
		e.Path = r.Path
	}
	e.Tier, e.User, e.Rule = o.Tier, given(o.User), given(o.Rule)
	if r.Key != "" || r.KeyID != 0 {
		state := map[policy.Reason]string{policy.UnknownKey: "unknown", policy.KeyExpired: "expired",
			policy.KeyRevoked: "revoked"}[trace.Key]
		e.Key, e.KeyID = given(cmp.Or(state, "valid")), given(id.KeyID)
	}
	if e.Rules, err = explainRules(ctx, conn, trace, ambiguous != nil); err != nil {
		return nil, err
	}
	if e.Limits, err = explainLimits(ctx, db, o); err != nil {
		return nil, err
	}
	for i, mark := range trace.Marks {
		if !o.Refused() && !o.Exempt {
			e.Limits = append(e.Limits, limitOf(&trace.Unlimited[i], mark, nil))
		}
	}
	e.conclude(o)
	return e, nil
}

// given is a pointer to a value, and nil for the zero value.
func given[T comparable](value T) *T {
	if value == *new(T) {
		return nil
	}
	return &value
}

// reasonTexts are reasons of the audit log in words.
var reasonTexts = map[policy.Reason]string{
	policy.UnknownKey: "unknown API key", policy.KeyExpired: "expired API key",
	policy.KeyRevoked:    "revoked API key",
	policy.AmbiguousPath: "path with two meanings", policy.NoQuota: "a quota of 0",
}

// conclude sets the result.
func (e *Explanation) conclude(o *policy.Verdict) {
	refuse := func(reason, text string, status int) {
		e.Outcome, e.Reason, e.Status = "refused", &reason, &status
		e.Result = fmt.Sprintf("would be refused with status %d: %s", status, text)
	}
	switch {
	case o.Refused():
		text := cmp.Or(reasonTexts[o.Reason], strings.ReplaceAll(o.Reason.String(), "_", " "))
		if o.Rule != "" {
			text += " by the rule " + o.Rule
		}
		refuse(o.Reason.String(), text, o.Status)
		return
	case o.Exempt:
		e.Outcome, e.Result = "exempt", "would pass: the rule "+o.Rule+" exempts it from all limits"
		return
	}
	e.Outcome, e.Result = "free", "would pass: no limit applies"
	for i := range e.Limits {
		switch l := &e.Limits[i]; {
		case l.refuses:
			refuse("limit "+l.Limit, "limit "+l.Limit, l.status)
			e.Rule = &l.rule
			return
		case !l.shadow:
			e.Outcome, e.Result = "limited", "would pass, and be charged to limits"
		}
	}
}

// explainRules says whether each rule applies. The trace has those that can have an effect.
func explainRules(ctx context.Context, conn *pgx.Conn, trace *policy.Trace, ambiguous bool) ([]Rule, error) {
	result, err := conn.Query(ctx, `SELECT name, action, family, priority, mode, false, ''
FROM rate_limit_rule_states`)
	if err != nil {
		return nil, err
	}
	rules, err := pgx.CollectRows(result, pgx.RowToStructByPos[Rule])
	for i := range rules {
		x := &rules[i]
		found, isTraced := trace.Rules[x.Name]
		x.Applies, x.Why = found.Applies, found.Why
		switch {
		case x.Mode == string(settings.Off):
			x.Applies, x.Why = false, "mode: off"
		case !isTraced:
			x.Why = "valid: it has ended"
		case ambiguous:
			x.Applies, x.Why = false, "the request is refused before: "+policy.AmbiguousPath.String()
		}
	}
	sort.SliceStable(rules, func(i, j int) bool { return rules[i].Applies && !rules[j].Applies })
	return rules, err
}

// identity returns what proxies read about the sender of a request; nil for nobody.
func identity(ctx context.Context, conn *pgx.Conn, db *pgxdb.DB, r *Request) (*policy.Identity, error) {
	sender := policy.Credential{}
	switch {
	case r.Key != "":
		sender.Digest = policy.Digest(r.Key)
	case r.KeyID != 0:
		var found []byte
		err := conn.QueryRow(ctx, "SELECT digest FROM rate_limit_api_keys WHERE id = $1",
			r.KeyID).Scan(&found)
		if errors.Is(err, pgx.ErrNoRows) {
			err = fmt.Errorf("key: %d: %w", r.KeyID, ErrNoKey)
		}
		if err != nil {
			return nil, err
		}
		copy(sender.Digest[:], found)
	case r.User != "":
		sender.User = r.User
	default:
		return nil, nil
	}
	return policy.ReadIdentity(db, sender)
}

// leftTimeout is for the decisions of a store that nobody else uses.
const leftTimeout = 10 * time.Second

// explainLimits asks a store what is left of the limits of a verdict, and charges nothing.
func explainLimits(ctx context.Context, db *pgxdb.DB, o *policy.Verdict) ([]Limit, error) {
	limits := []Limit{}
	if len(o.Hits) == 0 {
		return limits, nil
	}
	store, err := postgres.New(keepOpen{db},
		postgres.Options{DisableMigration: true, CleanupProbability: -1, DisableInMemoryBlock: true})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	hits := append([]ratelimit.Hit(nil), o.Hits...)
	for i := range hits {
		hits[i].Peek = true
	}
	decisions := make([]ratelimit.Decision, len(hits))
	if err := store.Take(ctx, leftTimeout, hits, decisions); err != nil {
		return nil, err
	}
	for i := range hits {
		limits = append(limits, limitOf(&hits[i], o.Marks[i], &decisions[i]))
	}
	return limits, nil
}

// limitOf is a limit with what is left of it. Without a decision it is unlimited.
func limitOf(hit *ratelimit.Hit, mark *policy.Mark, decision *ratelimit.Decision) Limit {
	l := Limit{
		Limit: mark.Rule + "/" + mark.Limit, CountedFor: hit.StoredKey(),
		Algorithm: hit.Limit.Algorithm.String(),
		From:      "the " + mark.From, Cost: hit.Cost, Window: window(hit.Limit), Would: "pass",
		rule: mark.Rule, status: mark.Status, shadow: mark.Shadow,
	}
	if mark.Settle != nil {
		l.Settle = &mark.Settle.Text
	}
	if decision == nil {
		return l
	}
	left := decision.Remaining
	if mark.Overage { // the store counts up to a larger quota
		left = mark.Quota - (decision.Limit - decision.Remaining)
	}
	l.Amount, l.Left = &mark.Quota, &left
	if reset := decision.Reset.UTC(); !reset.IsZero() {
		l.Resets = &reset
	}
	if decision.RetryAfter > 0 && decision.RetryAfter != ratelimit.Never {
		l.RetryAfter = given(decision.RetryAfter.Seconds())
	}
	if !decision.Allowed {
		l.Would = "refuse"
		l.refuses = !mark.Shadow && !mark.Overage
		if l.RetryAfter != nil {
			l.Would += ", again in " + span(decision.RetryAfter)
		}
	}
	switch {
	case mark.Shadow:
		l.Would += " (shadow)"
	case mark.Overage && left < hit.Cost:
		l.Would = "pass, beyond the quota"
	}
	return l
}

// calendarNames are the units in rate_limit_rule_limits.calendar, by ratelimit.Calendar.
var calendarNames = []string{"-", "day", "week", "month", "year"}

func window(l *ratelimit.Limit) string {
	if l.Window > 0 {
		return span(l.Window)
	}
	return calendarNames[l.Calendar]
}

// span is a duration for people, as in 1h, 1m30s, 7d or 0.5s.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	text := d.Round(time.Millisecond).String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// keepOpen is a connection that the store does not close.
type keepOpen struct{ *pgxdb.DB }

func (keepOpen) Close() {}
