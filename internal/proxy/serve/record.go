package serve

import (
	"errors"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// record records delivered requests. Plain records go to history.AddCounted together; the rest to addOne with
// all details.
func record(all []*Request, now time.Time) {
	records := make([]history.Record, len(all))
	counted := make([]*Request, 0, len(all)) // the requests of records, in its order
	var writer *history.Writer               // the history of the requests in counted
	for _, q := range all {
		s := q.Site
		if s.History != writer {
			addCounted(writer, records, counted)
			counted = counted[:0]
			writer = s.History
		}
		r := &records[len(counted)]
		setCounts(r, q, now)
		d := q.Outcome.Decision
		if d == nil || q.Outcome.Err != nil || q.Settling != nil || !q.Limits.Simple ||
			r.Audit.Level >= settings.AuditSample ||
			q.Asked && (!d.Allowed || !q.Verdict.Simple || len(q.Verdict.Would) > 0) {
			addOne(r, q)
			continue
		}
		if r.Outcome != history.Allowed {
			r.Key = q.Hits[q.Outcome.Hit].StoredKey()
		}
		counted = append(counted, q)
	}
	addCounted(writer, records, counted)
}

// addCounted adds plain records of the requests of. It passes those that history.AddCounted returns to
// addOne.
func addCounted(w *history.Writer, records []history.Record, of []*Request) {
	if len(of) == 0 {
		return
	}
	for _, i := range history.AddCounted(w, records[:len(of)]) {
		addOne(&records[i], of[i])
	}
	for i := range of {
		records[i] = history.Record{}
	}
}

// addOne completes a record that setCounts has filled, and adds the record and those of shadow limits.
func addOne(r *history.Record, q *Request) {
	s := q.Site
	r.Method = q.HTTP.Method
	if q.Asked {
		if !q.Facts.Assumed {
			r.Address = q.Facts.Address
		}
		r.Host = q.Facts.Host
		r.Path = q.Facts.Path
	} else {
		if address, assumed := s.Address(q.HTTP); !assumed {
			r.Address = address
		}
		r.Host = HostOf(q.HTTP)
	}
	if r.Path == "" { // the facts have no path if it is ambiguous
		r.Path = Path(q.HTTP.URL.EscapedPath())
	}
	if s.Hidden.Host {
		r.Host = ""
	}
	if s.Hidden.Path {
		r.Path = ""
	}
	hideKeys(r, q)
	setKeys(r, q)
	if q.Settling != nil {
		r.Unsettled = q.Settling.attach(r)
	}
	history.Add(s.History, r)
	addShadows(s.History, r, q)
	*r = history.Record{}
}

// setCounts sets the fields of a record that metrics use, and those of the audit log that addOne does not
// set.
func setCounts(r *history.Record, q *Request, now time.Time) {
	s := q.Site
	o := &q.Outcome
	r.Time = now
	r.Duration = now.Sub(q.Began)
	r.Audit = q.Limits.Audit
	r.Hits = q.Hits
	r.Status = o.Status
	if s.UserOf != nil {
		r.User = s.UserOf(q.HTTP)
		if s.Hidden.User {
			r.User = ""
		}
	}
	if q.Asked {
		p := &q.Verdict
		r.Endpoint = q.Facts.Route
		if r.Endpoint == "" {
			r.Endpoint = p.Endpoint
		}
		r.KeyID = p.KeyID
		r.Tier = p.Tier
		if p.User != "" {
			r.User = p.User
		}
		if p.Ended != nil {
			r.KeyID = p.Ended.KeyID
			r.User = p.Ended.User
		}
	}
	if r.Endpoint == "" {
		r.Endpoint = q.Limits.Endpoint
	}
	if len(q.Hits) == 0 {
		setRule(r, &q.Verdict)
	} else {
		if at := enforcedHit(q); at >= 0 {
			r.Prefix = q.Hits[at].Limit.Prefix
			if !q.Hits[at].Peek { // a peek charges nothing
				r.Cost = q.Hits[at].Cost
			}
		}
	}
	d := o.Decision
	switch {
	case o.Err != nil:
		r.Outcome = history.Failed
		r.Reason = failureReason(o.Err)
	case d != nil:
		r.Quota = d.Limit
		r.Remaining = d.Remaining
		r.Source = d.Source
		if !d.Allowed {
			r.Outcome = history.Limited
			r.RetryAfter = d.RetryAfter
		}
	case o.Status != 0:
		setRefusal(r, o)
	}
}

// enforcedHit returns the index of the hit that a record describes: the deciding hit, or the first one after
// it that is not Apart. It returns -1 without one.
func enforcedHit(q *Request) int {
	at := q.Outcome.Hit
	for at < len(q.Hits) && q.Hits[at].Apart {
		at++
	}
	if at == len(q.Hits) {
		return -1
	}
	return at
}

// setKeys sets the keys of a record that may enter the audit log.
func setKeys(r *history.Record, q *Request) {
	o := &q.Outcome
	hits := q.Hits
	if len(hits) == 0 || r.Audit.Level < settings.AuditSample && o.Status == 0 && o.Err == nil {
		return
	}
	at := enforcedHit(q)
	if at >= 0 {
		r.Key = hits[at].StoredKey()
	}
	if len(hits) > 1 || at < 0 {
		r.Also = alsoOf(at, r.Key, hits)
	}
}

// hideKeys redacts API keys in the host and the path of a record, where clients write them. It redacts the
// request's own key if the policy has the key or could not look the key up. Redacting an unknown key, which
// may be any text, would let clients hide their requests.
func hideKeys(r *history.Record, q *Request) {
	key := q.Key
	switch q.Outcome.Reason {
	case policy.KeyExpired, policy.KeyRevoked, policy.AmbiguousPath:
	default:
		if q.Verdict.KeyID == 0 && q.Outcome.Err == nil {
			key = ""
		}
	}
	r.Host = policy.HideKeys(r.Host, strings.ToLower(key))
	r.Path = policy.HideKeys(r.Path, key)
}

// setRule sets the prefix of a record to the rule that refused or exempted the request.
func setRule(r *history.Record, p *policy.Verdict) {
	if p.Rule == "" {
		return
	}
	r.Prefix = RulePrefix + p.Rule
	if p.Mark != nil && p.Mark.Limit != "" {
		r.Prefix += "/" + p.Mark.Limit
	}
}

// alsoOf returns the prefixes and keys of all hits except that at index at, which has this key; with -1 it
// excludes none. Limits of one rule with the same key appear once, with the prefix of the rule.
func alsoOf(at int, key string, hits []ratelimit.Hit) []string {
	var also []string
	prefix := ""
	if at >= 0 {
		prefix, _ = history.SplitPrefix(hits[at].Limit.Prefix)
	}
	for i := range hits {
		if i == at {
			continue
		}
		p, _ := history.SplitPrefix(hits[i].Limit.Prefix)
		k := hits[i].StoredKey()
		known := p == prefix && k == key
		for j := 0; j < len(also) && !known; j += 2 {
			known = also[j] == p && also[j+1] == k
		}
		if !known {
			also = append(also, p, k)
		}
	}
	return also
}

// setRefusal sets the outcome and the reason of a request that was refused without a decision on a limit.
func setRefusal(r *history.Record, o *respond.Outcome) {
	r.RetryAfter = o.Wait
	r.Reason = o.Reason.String()
	switch o.Reason {
	case policy.Banned, policy.Blocked:
		r.Outcome = history.Blocked
	case policy.NoQuota:
		r.Outcome = history.Limited
		if o.Wait == 0 {
			r.RetryAfter = ratelimit.Never
		}
	default:
		r.Outcome = history.Rejected
	}
}

// failureReason returns the reason in the history for a request without a decision.
func failureReason(err error) string {
	switch {
	case errors.Is(err, ratelimit.ErrOverloaded):
		return "overloaded"
	case errors.Is(err, ratelimit.ErrTimeout):
		return "timeout"
	}
	return "unavailable"
}

// addShadows adds a record for each shadow rule, and for each limit of the configuration in the mode shadow,
// that would have refused the request. r is the record of the request.
func addShadows(w *history.Writer, r *history.Record, q *Request) {
	o := &q.Outcome
	p := &q.Verdict
	hits := q.Hits
	decisions := q.Decisions
	if o.Err != nil {
		return
	}
	for _, m := range p.Would {
		if m.Status != 0 { // else the rule exempts
			addShadow(w, r, m, nil, nil)
		}
	}
	first := len(hits) - len(p.Marks)
	if first < 0 || len(decisions) < len(hits) {
		return
	}
	for i := 0; i < first; i++ {
		if wouldRefuse(&hits[i], &decisions[i]) {
			addShadow(w, r, nil, &hits[i], &decisions[i])
		}
	}
	last := "" // the limits of a rule are adjacent
	for i, m := range p.Marks {
		d := &decisions[first+i]
		if m.Rule != last && wouldRefuse(&hits[first+i], d) {
			last = m.Rule
			addShadow(w, r, m, &hits[first+i], d)
		}
	}
}

// wouldRefuse reports whether a limit in the mode shadow would have refused its hit.
func wouldRefuse(h *ratelimit.Hit, d *ratelimit.Decision) bool {
	return h.Apart && !d.Allowed && d.Source != ratelimit.Undecided
}

// addShadow adds the record of a shadow rule, or of a shadow limit of the configuration, for which m is nil.
// r is the record of the request. h and d are nil for a rule without a count.
func addShadow(w *history.Writer, r *history.Record, m *policy.Mark, h *ratelimit.Hit,
	d *ratelimit.Decision) {
	shadow := *r
	shadow.Outcome = history.Shadow
	shadow.Reason = ""
	shadow.Key = ""
	shadow.Cost = 0
	shadow.Quota = 0
	shadow.Remaining = 0
	shadow.RetryAfter = 0
	shadow.Status = 0
	shadow.Source = ratelimit.FromPostgres
	shadow.Also = nil
	if m != nil {
		shadow.Prefix = RulePrefix + m.Rule
		if m.Limit != "" {
			shadow.Prefix += "/" + m.Limit
		}
		shadow.RetryAfter = m.RetryAfter
	}
	if h != nil {
		shadow.Prefix = h.Limit.Prefix
		shadow.Key = h.StoredKey()
		shadow.Cost = h.Cost
		shadow.Quota = d.Limit
		shadow.Remaining = d.Remaining
		shadow.RetryAfter = d.RetryAfter
		shadow.Source = d.Source
	}
	history.Add(w, &shadow)
}
