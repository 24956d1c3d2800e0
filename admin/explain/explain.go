// Package explain answers two questions of an operator with the code of the proxies:
//
//   - What would happen to a request? Explain returns an Explanation with the verdict, and with the reason
//     why each rule applies or does not.
//   - What would other Limits of a rule have done to the recorded requests? Run returns a Replay, which
//     compares the recorded outcomes with the outcomes under these Limits.
//
// Commands print both as tables or JSON.
//
// The package only reads the database: it charges no limit and changes no row.
//
// The commands of admin/command test it (TestTranscripts, with explain.txt and replay.txt), and package
// policy compares Explain with the decisions of proxies (TestExplainEqualsEvaluate).
package explain

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"sort"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// Request is a request as a proxy sees it.
type Request struct {
	// Sender is the API key, or the user that the proxy authenticated. The zero Credential means an anonymous
	// request.
	Sender policy.Credential
	// Facts has the facts besides the sender. Tier is the tier of anonymous requests. Host and Path are as
	// the client sends them, because Explain normalizes them. The zero Address means AssumedAddress.
	policy.Facts
	// Model is the model that the body names, or "" for a request to no language model.
	Model string
	// At is the time of the request.
	At time.Time
}

// AssumedAddress replaces a missing client address, because a rule that counts by address would not match a
// request without one. AssumedAddress belongs to a network for documentation, which hardly any rule names.
var AssumedAddress = netip.MustParseAddr("203.0.113.1")

// Explanation describes the verdict on a request and its reasons.
type Explanation struct {
	// Result is prose, such as "would pass: no limit applies". Outcome is a word of docs/operating.md.
	Result  string    `json:"result"`
	Outcome string    `json:"outcome"`
	At      time.Time `json:"at"`
	// KeyID is the id of the API key, and Key its state: "valid", "expired", "revoked" or "unknown". For a
	// request without an API key, KeyID and Key are nil.
	KeyID *int64  `json:"key_id"`
	Key   *string `json:"key"`
	User  *string `json:"user"`
	Tier  string  `json:"tier"`
	// Reason is a policy.Reason, or "exempt", "charged" or "free" if the request passes, or nil if a limit
	// refuses it. Status describes a refusal. Rule is the deciding rule, or nil.
	Reason *string `json:"reason"`
	Status *int    `json:"status"`
	Rule   *string `json:"rule"`
	// Address is the client's address. AddressAssumed is true if the Request had no address, else nil.
	Address        string `json:"address"`
	AddressAssumed *bool  `json:"address_assumed"`
	// Path and Host are the normal forms, with which rules compare. A path without a normal form is as the
	// client sent it.
	Path string `json:"path"`
	Host string `json:"host"`
	// Model is the model of the request, and Price the name of its price. nil: none.
	Model *string `json:"model"`
	Price *string `json:"price"`

	// Rules has all rules of the policy. The rules that apply come first.
	Rules []policy.TracedRule `json:"rules"`
	// Limits has the limits that the request is charged to.
	Limits []Limit `json:"limits"`
}

// Limit describes a limit that a request is charged to.
type Limit struct {
	Limit string `json:"limit"` // RULE/LIMIT
	// CountedFor is the key of the counter.
	CountedFor string `json:"counted_for"`
	// Level is the user above the sender who has the limit, or nil for the sender.
	Level *string `json:"level"`
	// Amount is nil if the limit is unlimited. AmountSource says whether the amount is from the rule, or from
	// an override for the tier, the user or the key.
	Amount       *json.Number `json:"amount"`
	AmountSource string       `json:"from"`
	Window       string       `json:"window"`
	Algorithm    string       `json:"algorithm"`
	// Cost is nil for a limit in money, for which it depends on the model.
	Cost *json.Number `json:"cost"`
	// Settle describes how the proxy reads the actual cost from the response. nil means that Cost is final.
	Settle *string `json:"settle"`
	// Remaining is the part of Amount that is neither used nor held. It is negative after overage.
	Remaining *json.Number `json:"left"`
	// Held is what running requests hold of a limit of tokens, which is not in Remaining. nil: no such limit.
	Held *json.Number `json:"held"`
	// Resets is ratelimit.Decision.Reset, or nil if the limit is unlimited or the request can never pass.
	// RetryAfter is in seconds, or nil if the request would pass now or can never pass. Effect describes what
	// the limit would do now, such as "refuse, again in 30s".
	Resets     *time.Time `json:"resets"`
	RetryAfter *float64   `json:"retry_after"`
	Effect     string     `json:"would"`

	terms   *policy.Terms
	refuses bool
}

// Explain evaluates a request at the time r.At. It always uses the rules, bans and identities that the
// database of conn and db has now. Explain may close db.
func Explain(ctx context.Context, conn *pgx.Conn, db *pgxdb.DB, r *Request) (*Explanation, error) {
	facts := r.Facts
	facts.Host, facts.Address = policy.NormalHost(r.Host), r.Address.Unmap().WithZone("")
	e := &Explanation{At: r.At, Model: nilIfZero(r.Model),
		AddressAssumed: nilIfZero(!r.Address.IsValid()), Host: facts.Host}
	if e.AddressAssumed != nil {
		facts.Address = AssumedAddress
	}
	facts.Path = policy.NormalPath(r.Path) // "" if the path is ambiguous
	e.Address, e.Path = facts.Address.String(), cmp.Or(facts.Path, r.Path)
	var id *policy.Identity
	var err error
	if r.Sender != (policy.Credential{}) {
		if id, err = policy.ReadIdentity(db, r.Sender); err != nil {
			return nil, err
		}
	}
	snapshot, err := policy.ReadSnapshot(ctx, db)
	if err != nil {
		return nil, err
	}
	v, trace := policy.Explain(snapshot, &facts, id, e.At)
	e.Tier, e.User, e.Rule = v.Tier, nilIfZero(v.User), nilIfZero(v.Rule)
	if r.Sender.Digest != "" {
		state := map[policy.Reason]string{policy.UnknownKey: "unknown", policy.KeyExpired: "expired",
			policy.KeyRevoked: "revoked"}[trace.Key]
		e.Key, e.KeyID = nilIfZero(cmp.Or(state, "valid")), nilIfZero(id.KeyID)
	}
	sort.SliceStable(trace.Rules, func(i, j int) bool {
		return trace.Rules[i].Applies && !trace.Rules[j].Applies
	})
	e.Rules = trace.Rules
	price := policy.PricesAt(snapshot, e.At.UnixMicro()).Of(r.Model)
	if price != nil {
		e.Price = &price.Model
	}
	if e.Limits, err = explainLimits(ctx, conn, db, v, price != nil && price.Free); err != nil {
		return nil, err
	}
	for i, terms := range trace.Terms {
		if !v.Refused() && !v.Exempt {
			e.Limits = append(e.Limits, newLimit(&trace.Unlimited[i], terms, nil))
		}
	}
	e.conclude(v)
	return e, nil
}

// nilIfZero returns a pointer to a value, or nil for the zero value.
func nilIfZero[T comparable](value T) *T {
	if value == *new(T) {
		return nil
	}
	return &value
}

// conclude sets Outcome and Result, and the fields of a refusal.
func (e *Explanation) conclude(v *policy.Verdict) {
	refuse := func(kind outcome.Kind, reason, text string, status int) {
		e.Outcome, e.Reason, e.Status = kind.String(), nilIfZero(reason), &status
		e.Result = fmt.Sprintf("would be refused with status %d: %s", status, text)
	}
	reason := "free"
	e.Outcome, e.Reason, e.Result = outcome.Admitted.String(), &reason, "would pass: no limit applies"
	switch {
	case v.Refused():
		text := strings.ReplaceAll(string(v.Reason), "_", " ")
		if v.Rule != "" {
			text += " by the rule " + v.Rule
		}
		level := v.Level
		if v.Ban != nil && v.Ban.User != v.User {
			level = v.Ban.User
		}
		if level != "" {
			text += ", of the user above, " + level
		}
		refuse(v.Reason.Outcome(), string(v.Reason), text, v.Status)
		return
	case v.Exempt:
		reason, e.Result = "exempt", "would pass: the rule "+v.Rule+" exempts it from all limits"
		return
	}
	for _, terms := range v.Terms {
		if e.Model != nil && e.Price == nil && !terms.Shadow && terms.CostSource.UnitOf() == option.Money {
			refuse(outcome.Rejected, string(policy.NoPrice),
				fmt.Sprintf("the model %q has no price", *e.Model), http.StatusBadRequest)
			return
		}
	}
	for i := range e.Limits {
		switch l := &e.Limits[i]; {
		case l.refuses:
			refuse(outcome.Limited, "", "limit "+l.Limit, l.terms.Status)
			e.Rule = &l.terms.Rule
			return
		case !l.terms.Shadow:
			reason, e.Result = "charged", "would pass, and be charged to limits"
		}
	}
}

// peekTimeout is the timeout of the call of Take in explainLimits.
const peekTimeout = 10 * time.Second

// explainLimits peeks at the counters of a verdict's limits. Limits in money let a free request pass.
func explainLimits(ctx context.Context, conn *pgx.Conn, db *pgxdb.DB, v *policy.Verdict, free bool) (
	[]Limit, error) {
	limits := []Limit{}
	if len(v.Hits) == 0 {
		return limits, nil
	}
	store, err := postgres.New(db,
		postgres.Options{DisableMigration: true, CleanupProbability: -1, DisableRememberedRefusals: true})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	hits := append([]ratelimit.Hit(nil), v.Hits...)
	for i := range hits {
		hits[i].Peek = true
		if s := v.Terms[i].CostSource; s.CountsTokens() {
			hits[i].Cost = s.Charge(0, s.Output, 1, v.Terms[i].Quota)
		}
	}
	decisions := make([]ratelimit.Decision, len(hits))
	if err := store.Take(ctx, peekTimeout, hits, decisions); err != nil {
		return nil, err
	}
	for i := range hits {
		if free && v.Terms[i].CostSource.UnitOf() == option.Money {
			decisions[i].Allowed, decisions[i].RetryAfter = true, 0
		}
		l := newLimit(&hits[i], v.Terms[i], &decisions[i])
		if hits[i].Limit.Reserves {
			var held int64
			err := conn.QueryRow(ctx, "SELECT coalesce(sum(held), 0)::bigint "+
				"FROM rate_limit_counters($1, $2, ARRAY[$3])",
				cmp.Or(hits[i].Limit.CountedAs, hits[i].Limit.Prefix), hits[i].Limit.Durable,
				hits[i].StoredKey()).Scan(&held)
			if err != nil {
				return nil, err
			}
			l.Held = amount(v.Terms[i], held)
		}
		limits = append(limits, l)
	}
	return limits, nil
}

// amount returns a number of units of a limit as people read it.
func amount(terms *policy.Terms, n int64) *json.Number {
	text := terms.CostSource.UnitOf().Amount(n)
	if terms.CostSource.UnitOf() == option.Money {
		whole, decimals, _ := strings.Cut(text, ".")
		text = whole + "." + (decimals + "000000")[:6]
	}
	number := json.Number(text)
	return &number
}

// newLimit describes the limit of a hit. decision is the result of a peek, or nil if the limit is unlimited.
func newLimit(hit *ratelimit.Hit, terms *policy.Terms, decision *ratelimit.Decision) Limit {
	l := Limit{
		Limit: terms.Rule + "/" + terms.Limit, CountedFor: hit.StoredKey(),
		Algorithm:    hit.Limit.Algorithm.String(),
		AmountSource: "the " + terms.AmountSource, Cost: amount(terms, hit.Cost),
		Window: window(hit.Limit), Effect: "pass", Level: nilIfZero(terms.Level),
		terms: terms,
	}
	if terms.CostSource != nil {
		l.Settle = &terms.CostSource.Text
	}
	if terms.CostSource.UnitOf() == option.Money {
		l.Cost = nil
	}
	if decision == nil {
		return l
	}
	remaining := decision.Remaining
	if terms.Overage { // decision.Quota is larger than terms.Quota, so that the limit never refuses
		remaining = terms.Quota - (decision.Quota - decision.Remaining)
	}
	l.Amount, l.Remaining = amount(terms, terms.Quota), amount(terms, remaining)
	if reset := decision.Reset.UTC(); !reset.IsZero() {
		l.Resets = &reset
	}
	if decision.RetryAfter > 0 && decision.RetryAfter != ratelimit.Never {
		l.RetryAfter = nilIfZero(decision.RetryAfter.Seconds())
	}
	if !decision.Allowed {
		l.Effect = "refuse"
		l.refuses = !terms.Shadow && !terms.Overage
		if l.RetryAfter != nil {
			l.Effect += ", again in " + formatDuration(decision.RetryAfter)
		}
	}
	switch {
	case terms.Shadow:
		l.Effect += " (shadow)"
	case terms.Overage && remaining < hit.Cost:
		l.Effect = "pass, beyond the quota"
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

// formatDuration returns a short text for a duration, such as 1h, 1m30s, 7d or 500ms.
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
