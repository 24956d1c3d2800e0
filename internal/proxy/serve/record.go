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

// record records requests that were delivered at a moment. What history.AddCounted can add needs few facts,
// and is added together.
func record(all []*Request, now time.Time) {
	records := make([]history.Record, len(all))
	counted := make([]*Request, 0, len(all)) // the requests of records
	var writer *history.Writer               // of counted
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

// addCounted adds the records of requests, and adds one by one those that cannot be added together.
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

// addOne adds a record that has its counts, with all details, and those of shadow rules and limits.
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
	if r.Path == "" { // so it is if the path is ambiguous
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

// setCounts sets in a record what the metrics have of a request, and what the audit log has besides the
// details of addOne.
func setCounts(r *history.Record, q *Request, now time.Time) {
	s := q.Site
	o := &q.Outcome
	r.Time = now
	r.Duration = now.Sub(q.Began)
	r.Audit = q.Limits.Audit
	r.Hits = q.Hits
	r.Status = o.Status
	if s.Recording != nil {
		r.User = s.Recording(q.HTTP)
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
		if at := enforced(q); at >= 0 {
			r.Prefix = q.Hits[at].Limit.Prefix
			if !q.Hits[at].Peek { // which charges nothing
				r.Cost = q.Hits[at].Cost
			}
		}
	}
	d := o.Decision
	switch {
	case o.Err != nil:
		r.Outcome = history.Failed
		r.Reason = failureOf(o.Err)
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

// enforced returns the index of the hit that a record is about: that of the decision, or without one the
// first that enforces anything; -1 is none.
func enforced(q *Request) int {
	at := q.Outcome.Hit
	for at < len(q.Hits) && q.Hits[at].Apart {
		at++
	}
	if at == len(q.Hits) {
		return -1
	}
	return at
}

// setKeys sets in a record the keys of a request, if it may be in the audit log.
func setKeys(r *history.Record, q *Request) {
	o := &q.Outcome
	hits := q.Hits
	if len(hits) == 0 || r.Audit.Level < settings.AuditSample && o.Status == 0 && o.Err == nil {
		return
	}
	at := enforced(q)
	if at >= 0 {
		r.Key = hits[at].StoredKey()
	}
	if len(hits) > 1 || at < 0 {
		r.Also = alsoOf(at, r.Key, hits)
	}
}

// hideKeys hides API keys in the host and the path of a record: clients write them there. The key of the
// request is hidden if the policy has it, or could not look it up. An unknown key is any text: hiding it
// would let clients hide their requests.
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

// setRule sets in a record which rule refused or exempted a request.
func setRule(r *history.Record, p *policy.Verdict) {
	if p.Rule == "" {
		return
	}
	r.Prefix = RulePrefix + p.Rule
	if p.Mark != nil && p.Mark.Limit != "" {
		r.Prefix += "/" + p.Mark.Limit
	}
}

// alsoOf returns the prefixes and keys of the hits other than the one at an index, which has that key; -1 is
// none. Limits of one rule that have the same key are there once, as rule/ and its counter.
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

// setRefusal sets in a record why a request was refused without a decision on a limit.
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

// failureOf returns the reason of a request without a decision.
func failureOf(err error) string {
	switch {
	case errors.Is(err, ratelimit.ErrOverloaded):
		return "overloaded"
	case errors.Is(err, ratelimit.ErrTimeout):
		return "timeout"
	}
	return "unavailable"
}

// addShadows adds a record to a history for each shadow rule, and each limit of the configuration in the mode
// shadow, that would have refused a request. r is the record of the request.
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
	last := "" // the limits of a rule stand together
	for i, m := range p.Marks {
		d := &decisions[first+i]
		if m.Rule != last && wouldRefuse(&hits[first+i], d) {
			last = m.Rule
			addShadow(w, r, m, &hits[first+i], d)
		}
	}
}

// wouldRefuse reports whether a limit in the mode shadow lacks room for its hit.
func wouldRefuse(h *ratelimit.Hit, d *ratelimit.Decision) bool {
	return h.Apart && !d.Allowed && d.Source != ratelimit.Undecided
}

// addShadow adds a record of a shadow rule, or of a limit of the configuration, which has no mark. r is the
// record of the request. Without a count, the hit and the decision are nil.
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
