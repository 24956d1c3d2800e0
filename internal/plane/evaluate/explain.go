// Package evaluate answers two questions of operators with the code of the proxies. Explain says what the
// policy does with a described Request, and why: its Explanation has each rule and Limit. Run decides the
// recorded requests of a rule again with other Limits of that rule, and its Replay compares the result
// with what happened. Commands print both results, as tables or JSON.
//
// The package only reads the database: it charges no limit and changes no row.
package evaluate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sort"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// Request is a request as a proxy sees it. At most one of Key, KeyID and User is set.
type Request struct {
	Key   string // an API key; it is not stored
	KeyID int64  // the id of an API key
	User  string // a user that the proxy authenticated

	// Facts has the other facts. Tier is that of requests without a user. Host and Path are those of the
	// request, before policy.NormalHost and policy.NormalPath. The zero Address means AssumedAddress.
	policy.Facts
	// At is the time of the request.
	At time.Time
}

// AssumedAddress replaces a missing address of the client. Without an address, rules that count by it would
// not match. The address belongs to a network for documentation, so few rules name it.
var AssumedAddress = netip.MustParseAddr("203.0.113.1")

// ErrNoKey is returned if no API key has the KeyID of a Request.
var ErrNoKey = errors.New("no key has this id, see: caddy pg-ratelimit keys list")

// Explanation describes what the policy does with a request, and why.
type Explanation struct {
	// Result is a text, such as "would pass: no limit applies". Outcome is refused, exempt, limited or free.
	Result  string    `json:"result"`
	Outcome string    `json:"outcome"`
	At      time.Time `json:"at"`
	// KeyID is the id of the API key. Key is its state: valid, expired, revoked or unknown. Both are nil
	// without a key.
	KeyID *int64  `json:"key_id"`
	Key   *string `json:"key"`
	User  *string `json:"user"`
	Tier  string  `json:"tier"`
	// Reason and Status describe a refusal. Rule is the rule that decides, if one does.
	Reason *string `json:"reason"`
	Status *int    `json:"status"`
	Rule   *string `json:"rule"`
	// Address is the client's address. AddressAssumed is true if that is AssumedAddress, else nil.
	Address        string `json:"address"`
	AddressAssumed *bool  `json:"address_assumed"`
	// Path and Host are the normal forms that rules match. An ambiguous path stays as it was given.
	Path string `json:"path"`
	Host string `json:"host"`

	// Rules are all rules of the policy, first those that apply.
	Rules []policy.TracedRule `json:"rules"`
	// Limits are the limits that the request is charged to.
	Limits []Limit `json:"limits"`
}

// Limit describes a limit that a request is charged to.
type Limit struct {
	Limit string `json:"limit"` // RULE/LIMIT
	// CountedFor is the key of the counter.
	CountedFor string `json:"counted_for"`
	// Amount is nil for unlimited. From is the source of the amount: the rule, tier, user or key.
	Amount    *int64 `json:"amount"`
	From      string `json:"from"`
	Window    string `json:"window"`
	Algorithm string `json:"algorithm"`
	Cost      int64  `json:"cost"`
	// Settle names the actual cost of a request. nil means Cost.
	Settle *string `json:"settle"`
	// Left is the current rest of the amount. It is negative if more than the amount was used.
	Left *int64 `json:"left"`
	// Resets is ratelimit.Decision.Reset. It is nil for unlimited, and if the request can never pass.
	// RetryAfter is in seconds. It is nil if the request would pass now or never.
	Resets     *time.Time `json:"resets"`
	RetryAfter *float64   `json:"retry_after"`
	Would      string     `json:"would"`

	mark    *policy.Mark
	refuses bool
}

// Explain returns what the policy does with a request. conn and db must be connections to the same database.
// Explain uses the current rules, bans and identities, whatever r.At is.
func Explain(ctx context.Context, conn *pgx.Conn, db *pgxdb.DB, r *Request) (*Explanation, error) {
	facts := r.Facts
	facts.Host, facts.Address = policy.NormalHost(r.Host), r.Address.WithZone("")
	e := &Explanation{At: r.At, AddressAssumed: nilIfZero(!r.Address.IsValid()), Host: facts.Host}
	if e.AddressAssumed != nil {
		facts.Address = AssumedAddress
	}
	facts.Path, _ = policy.NormalPath(r.Path) // "" if it is ambiguous
	e.Address, e.Path = facts.Address.Unmap().String(), cmp.Or(facts.Path, r.Path)
	id, err := identity(ctx, conn, db, r)
	if err != nil {
		return nil, err
	}
	snapshot, err := policy.ReadSnapshot(ctx, db)
	if err != nil {
		return nil, err
	}
	o, trace := policy.Explain(snapshot, &facts, id, e.At)
	e.Tier, e.User, e.Rule = o.Tier, nilIfZero(o.User), nilIfZero(o.Rule)
	if r.Key != "" || r.KeyID != 0 {
		state := map[policy.Reason]string{policy.UnknownKey: "unknown", policy.KeyExpired: "expired",
			policy.KeyRevoked: "revoked"}[trace.Key]
		e.Key, e.KeyID = nilIfZero(cmp.Or(state, "valid")), nilIfZero(id.KeyID)
	}
	sort.SliceStable(trace.Rules, func(i, j int) bool {
		return trace.Rules[i].Applies && !trace.Rules[j].Applies
	})
	e.Rules = trace.Rules
	if e.Limits, err = explainLimits(ctx, db, o); err != nil {
		return nil, err
	}
	for i, mark := range trace.Marks {
		if !o.Refused() && !o.Exempt {
			e.Limits = append(e.Limits, newLimit(&trace.Unlimited[i], mark, nil))
		}
	}
	e.conclude(o)
	return e, nil
}

// nilIfZero returns a pointer to a value, or nil for the zero value.
func nilIfZero[T comparable](value T) *T {
	if value == *new(T) {
		return nil
	}
	return &value
}

// reasonTexts describes reasons for people. Other reasons speak for themselves.
var reasonTexts = map[policy.Reason]string{
	policy.UnknownKey: "unknown API key", policy.KeyExpired: "expired API key",
	policy.KeyRevoked:    "revoked API key",
	policy.AmbiguousPath: "path with two meanings", policy.NoQuota: "a quota of 0",
}

// conclude sets Outcome and Result, and the fields of a refusal.
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
			refuse("limit "+l.Limit, "limit "+l.Limit, l.mark.Status)
			e.Rule = &l.mark.Rule
			return
		case !l.mark.Shadow:
			e.Outcome, e.Result = "limited", "would pass, and be charged to limits"
		}
	}
}

// identity returns the identity of the sender of a request, or nil for an anonymous request.
func identity(ctx context.Context, conn *pgx.Conn, db *pgxdb.DB, r *Request) (*policy.Identity, error) {
	sender := policy.Credential{}
	switch {
	case r.Key != "":
		sender.Digest = policy.Digest(r.Key)
	case r.KeyID != 0:
		err := conn.QueryRow(ctx, "SELECT encode(digest, 'hex') FROM rate_limit_api_keys WHERE id = $1",
			r.KeyID).Scan(&sender.Digest)
		if errors.Is(err, pgx.ErrNoRows) {
			err = fmt.Errorf("key: %d: %w", r.KeyID, ErrNoKey)
		}
		if err != nil {
			return nil, err
		}
	case r.User != "":
		sender.User = r.User
	default:
		return nil, nil
	}
	return policy.ReadIdentity(db, sender)
}

// leftTimeout bounds the decisions of explainLimits.
const leftTimeout = 10 * time.Second

// explainLimits peeks at the counters of a verdict's limits.
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
		limits = append(limits, newLimit(&hits[i], o.Marks[i], &decisions[i]))
	}
	return limits, nil
}

// newLimit describes the limit of a hit. decision is nil if the limit is unlimited.
func newLimit(hit *ratelimit.Hit, mark *policy.Mark, decision *ratelimit.Decision) Limit {
	l := Limit{
		Limit: mark.Rule + "/" + mark.Limit, CountedFor: hit.StoredKey(),
		Algorithm: hit.Limit.Algorithm.String(),
		From:      "the " + mark.From, Cost: hit.Cost, Window: window(hit.Limit), Would: "pass",
		mark: mark,
	}
	if mark.Settle != nil {
		l.Settle = &mark.Settle.Text
	}
	if decision == nil {
		return l
	}
	left := decision.Remaining
	if mark.Overage { // decision.Limit is larger than the quota
		left = mark.Quota - (decision.Limit - decision.Remaining)
	}
	l.Amount, l.Left = &mark.Quota, &left
	if reset := decision.Reset.UTC(); !reset.IsZero() {
		l.Resets = &reset
	}
	if decision.RetryAfter > 0 && decision.RetryAfter != ratelimit.Never {
		l.RetryAfter = nilIfZero(decision.RetryAfter.Seconds())
	}
	if !decision.Allowed {
		l.Would = "refuse"
		l.refuses = !mark.Shadow && !mark.Overage
		if l.RetryAfter != nil {
			l.Would += ", again in " + formatDuration(decision.RetryAfter)
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

// calendarNames has the values of rate_limit_rule_limits.calendar, by ratelimit.Calendar.
var calendarNames = []string{"-", "day", "week", "month", "year"}

func window(l *ratelimit.Limit) string {
	if l.Window > 0 {
		return formatDuration(l.Window)
	}
	return calendarNames[l.Calendar]
}

// formatDuration returns a duration for people, such as 1h, 1m30s, 7d or 500ms.
func formatDuration(d time.Duration) string {
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

// keepOpen is a database that a store cannot close.
type keepOpen struct{ *pgxdb.DB }

func (keepOpen) Close() {}
