package serve

import (
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// record records finished requests, except those that nothing had to decide. It passes plain records
// together to history.AddBatch, and others to addInFull with all details.
func record(requests []*Request, now time.Time) {
	records := make([]history.Record, len(requests))
	counted := make([]*Request, 0, len(requests)) // the requests of records, in the same order
	var writer *history.Writer                    // the history of the requests in counted
	for _, q := range requests {
		s := q.Site
		if !q.HasVerdict && len(q.Hits) == 0 && q.Outcome.Status == 0 {
			continue
		}
		if s.History != writer {
			addCounted(writer, records, counted)
			counted = counted[:0]
			writer = s.History
		}
		r := &records[len(counted)]
		setCounts(r, q, now)
		d := q.Outcome.Decision
		if d == nil || q.Outcome.Err != nil || q.Settling != nil || !q.Limits.Simple ||
			r.Audit.Level >= option.AuditSample ||
			q.HasVerdict && (!d.Allowed || !q.Verdict.Simple || len(q.Verdict.ShadowTerms) > 0) {
			addInFull(r, q)
			continue
		}
		if r.Outcome != outcome.Admitted {
			r.Key = q.Hits[q.Outcome.Hit].StoredKey()
		}
		counted = append(counted, q)
	}
	addCounted(writer, records, counted)
}

// addCounted adds the plain records of requests, and clears records. It passes the records that
// history.AddBatch returns to addInFull.
func addCounted(w *history.Writer, records []history.Record, requests []*Request) {
	if len(requests) == 0 {
		return
	}
	for _, i := range history.AddBatch(w, records[:len(requests)]) {
		addInFull(&records[i], requests[i])
	}
	for i := range requests {
		records[i] = history.Record{}
	}
}

// addInFull completes a record that setCounts has filled, and adds it and the records of shadow limits.
func addInFull(r *history.Record, q *Request) {
	setDetails(r, q)
	setKeys(r, q)
	if s := q.Settling; s != nil {
		r.CostPending = s.costPending
		s.recorded = history.RealCost{Time: r.Time, User: r.User, KeyID: r.KeyID, Endpoint: r.Endpoint}
	}
	history.Add(q.Site.History, r)
	addShadows(r, q)
	*r = history.Record{}
}

// setKeys sets the keys of a record that setCounts has filled.
func setKeys(r *history.Record, q *Request) {
	also := []string{"", ""} // the pair of the record itself
	if at := q.Outcome.Hit; at < len(q.Hits) {
		r.Key = q.Hits[at].StoredKey()
		if len(q.Hits) == 1 {
			return
		}
		also[0], _ = history.SplitPrefix(r.Prefix)
		also[1] = r.Key
	}
	for i := range q.Hits {
		also = addPair(also, &q.Hits[i])
	}
	if len(also) > 2 {
		r.Also = also[2:]
	}
}

// addPair adds the prefix and the key of a hit to pairs if they are not there yet. Limits of one rule have
// the prefix of the rule.
func addPair(pairs []string, h *ratelimit.Hit) []string {
	prefix, _ := history.SplitPrefix(h.Limit.Prefix)
	key := h.StoredKey()
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] == prefix && pairs[i+1] == key {
			return pairs
		}
	}
	return append(pairs, prefix, key)
}

// setCounts sets the fields of a record that metrics use, and the request's outcome.
func setCounts(r *history.Record, q *Request, now time.Time) {
	r.Time = now
	r.Duration = now.Sub(q.Began)
	r.Audit = q.Limits.Audit
	r.User, r.KeyID = senderOf(q)
	if q.HasVerdict {
		v := &q.Verdict
		r.Endpoint = q.Facts.Route
		if r.Endpoint == "" {
			r.Endpoint = v.Endpoint
		}
		r.Tier = v.Tier
	} else if route := q.Site.Route; route != nil {
		facts := policy.Facts{}
		facts.SetRoutes(route.Values(&q.Input))
		r.Endpoint = facts.Route
	}
	if r.Endpoint == "" {
		r.Endpoint = q.Limits.Endpoint
	}
	o := &q.Outcome
	d := o.Decision
	r.Charged = q.Hits
	copied := false
	for i := range q.Hits {
		if !q.Terms[i].Repeated {
			continue
		}
		if !copied {
			r.Charged = append([]ratelimit.Hit{}, q.Hits...)
			copied = true
		}
		r.Charged[i].Cost = 0
	}
	r.Outcome = o.Kind
	r.Status = o.Status
	r.Reason = string(o.Reason)
	if o.Err != nil {
		d = nil
	} else if d == nil {
		r.RetryAfter = o.RetryAfter
	}
	if len(q.Hits) == 0 {
		setRule(r, q.Verdict.Rule, q.Verdict.Refusing)
	} else if o.Hit < len(q.Hits) {
		setHit(r, &q.Hits[o.Hit], d)
	}
}

// senderOf returns the user of a request, unless it is hidden, and the number of its API key.
func senderOf(q *Request) (string, int64) {
	s := q.Site
	user := ""
	if s.UserOf != nil && !s.Hidden.User {
		user = s.UserOf(q.HTTP)
	}
	if !q.HasVerdict {
		return user, 0
	}
	v := &q.Verdict
	if v.User != "" {
		user = v.User
	}
	return user, v.KeyID
}

// setDetails sets the fields of a record that describe the source and the target of the request. It redacts
// API keys in the host and the path, because clients write them there. It redacts the request's own key if
// the policy has the key or could not look it up. It does not redact an unknown key: such a key may be any
// text, so a client could hide what it requested.
func setDetails(r *history.Record, q *Request) {
	s := q.Site
	address, assumed := q.Facts.Address, q.Facts.AddressAssumed
	host, path := q.Facts.Host, q.Facts.Path
	if !q.HasVerdict {
		address, assumed = s.Clients.Address(q.HTTP)
		host = reading.HostOf(q.HTTP)
	}
	if path == "" { // the facts have no path if it is ambiguous
		path = reading.NormalizePath(q.HTTP.URL.EscapedPath())
	}
	key := q.Key
	if q.Verdict.KeyID == 0 && q.Outcome.Err == nil && q.Outcome.Reason != policy.AmbiguousPath {
		key = ""
	}
	r.Method = q.HTTP.Method
	if q.Upload != nil {
		r.Model = q.Upload.unpriced
	}
	if !assumed {
		r.Address = policy.ClientOf(address)
	}
	if !s.Hidden.Host {
		r.Host = policy.HideKeys(host, strings.ToLower(key))
	}
	if !s.Hidden.Path {
		r.Path = policy.HideKeys(path, key)
	}
}

// setHit sets the fields of a record that describe a hit, and the decision d on it unless d is nil.
func setHit(r *history.Record, h *ratelimit.Hit, d *ratelimit.Decision) {
	r.Prefix = h.Limit.Prefix
	r.Unit = h.Limit.Unit
	if !h.Peek { // a peek charges nothing
		r.Cost = h.Cost
	}
	if d != nil {
		r.Quota = d.Quota
		r.Remaining = d.Remaining
		r.RetryAfter = d.RetryAfter
		r.Source = d.Source
	}
}

// setRule sets the prefix of a record to the prefix of a rule, or of the limit of the rule that terms
// describes.
func setRule(r *history.Record, rule string, terms *policy.Terms) {
	if rule == "" {
		return
	}
	if terms != nil {
		rule = ruleLimit(terms)
	}
	r.Prefix = option.RulePrefix + rule
}

// ruleLimit returns the name of the limit that terms describes, RULE/LIMIT, or of the rule alone.
func ruleLimit(terms *policy.Terms) string {
	if terms.Limit == "" {
		return terms.Rule
	}
	return terms.Rule + "/" + terms.Limit
}

// addShadows adds a record for each shadow rule, and for each limit of the configuration in the mode shadow,
// that would have refused the request. r is the record of the request.
func addShadows(r *history.Record, q *Request) {
	if q.Outcome.Err != nil {
		return
	}
	for _, t := range q.Verdict.ShadowTerms {
		if t.Status != 0 { // else the rule exempts
			addShadow(r, q, t, nil, nil)
		}
	}
	last := "" // the limits of a rule are adjacent
	for i := range q.Decisions {
		t := q.Terms[i]
		h := &q.Hits[i]
		d := &q.Decisions[i]
		if !h.Independent || d.Allowed || d.Source == ratelimit.Undecided || t.Rule == last && last != "" {
			continue
		}
		last = t.Rule
		addShadow(r, q, t, h, d)
	}
}

// addShadow adds the record of a shadow limit, or of a shadow rule without a count, for which h is nil.
func addShadow(r *history.Record, q *Request, t *policy.Terms, h *ratelimit.Hit, d *ratelimit.Decision) {
	shadow := history.Record{Outcome: outcome.Limited, Shadow: true, Time: r.Time, Duration: r.Duration,
		Audit: r.Audit, User: r.User, KeyID: r.KeyID, Tier: r.Tier, Endpoint: r.Endpoint,
		Address: r.Address, Method: r.Method, Host: r.Host, Path: r.Path}
	if h == nil {
		if t.Limit == "" {
			shadow.Outcome = outcome.Blocked
		}
		setRule(&shadow, t.Rule, t)
		shadow.RetryAfter = t.RetryAfter
	} else {
		shadow.Key = h.StoredKey()
		setHit(&shadow, h, d)
	}
	history.Add(q.Site.History, &shadow)
}
