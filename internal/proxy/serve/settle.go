package serve

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Settling watches the response of a request that passed. At the end of the response, it settles the
// request's hits: the store charges or refunds the difference between the charge and the real cost, or on
// limits that reserve, charges the real cost and ends what the hit holds. One goroutine at a time calls
// ReadHeaders and Write.
type Settling struct {
	site    *Site
	hits    []settledHit
	headers bool                // a hit has its cost in a header
	paths   bool                // a hit has its cost in the body
	body    *usage.Frames       // reads the costs at paths; nil before the response, or without paths
	tokens  *tokens             // nil if no hit counts tokens
	empty   bool                // the response has no body: the method is HEAD, or the status 204 or 304
	writer  http.ResponseWriter // of the response; nil before Begin
	stopped int32               // 1 after Stop; atomic

	mu     sync.Mutex // guards the fields below, also while a part of the body is sent
	status int        // 0 before the response
	sent   int64      // bytes of the body
	ended  bool       // later writes by outer handlers do not count
	// hijacked reports that the connection is no longer the writer's.
	hijacked bool
	settled  bool  // settle has run
	running  int64 // its number in Site.running; 0 before Begin

	client    context.Context  // the request's context, which ends early if the client leaves
	unsettled []bool           // a true for each hit of the request that is settled
	recorded  history.RealCost // the record to complete, if there is a history
	bill      *batch.Bill      // with Charges from settle on
}

// clientLeft is the status of a request if its client left before the response.
const clientLeft = 499

// settler is a store that can settle, such as a proxy's store.
type settler interface{ Settle(b *batch.Bill) }

// settledHit is a hit with the setting settle. If the hit was not charged, its Limit is nil: the hit is not
// settled, and only the header with its cost is removed.
type settledHit struct {
	// The interpreter looks for a promoted field, such as Key, in the fields before the embedded struct, too.
	batch.Charge

	source   *option.CostSource
	values   []string // the texts of the cost in the response; nil without one
	repeated bool     // see policy.Terms

	// Set by settle: how the real cost differs from the charge, and why it is an estimate, or nil.
	outcome SettledCost
	err     error
}

// SettledCost says how the cost of a settled hit differs from its charge.
type SettledCost string

// The values of SettledCost.
const (
	SettledMore    SettledCost = "more"    // the request cost more than it was charged
	SettledLess    SettledCost = "less"    // the request cost less
	SettledSame    SettledCost = "same"    // its cost equals the charge
	SettledMissing SettledCost = "missing" // the response does not have the cost
	SettledInvalid SettledCost = "invalid" // the response has text that cannot be a cost
)

// SettledCosts lists all values.
var SettledCosts = []SettledCost{SettledMore, SettledLess, SettledSame, SettledMissing, SettledInvalid}

// NewSettling returns the Settling of a request that passed, or nil if there is nothing to settle.
func NewSettling(site *Site, q *Request) *Settling {
	s := &Settling{site: site, client: q.HTTP.Context(), unsettled: make([]bool, len(q.Hits)),
		empty: q.HTTP.Method == http.MethodHead, bill: &batch.Bill{}}
	for i := range q.Hits {
		terms := q.Terms[i]
		source := terms.CostSource
		h := &q.Hits[i]
		d := &q.Decisions[i]
		if source == nil {
			continue
		}
		one := settledHit{source: source, repeated: terms.Repeated}
		charged := d.Allowed && d.DecidedAt != 0 && h.Limit.Algorithm != ratelimit.InFlight ||
			h.Limit.Reserves && (d.Allowed || q.Outcome.Err != nil) // costs even without a decision
		free := q.free && source.Unit == option.Money
		if charged && (!h.Peek || free) && h.Cost >= 1 {
			key := h.StoredKey()
			one.Charge = batch.Charge{Limit: h.Limit, Key: key, Subject: h.Subject,
				Unit: string(source.Unit), Cost: h.Cost, DecidedAt: d.DecidedAt, Reset: d.Reset.UnixMicro(),
				Source: d.Source}
			if free {
				one.Cost = 0
			}
			if h.Limit.Reserves && q.Flight != nil {
				one.Hold = q.Flight.detach(h.Hold)
			}
			s.unsettled[i] = true
			s.paths = s.paths || source.Path != nil
			if source.Unit != "" {
				if s.tokens == nil {
					s.tokens = &tokens{length: q.HTTP.ContentLength, price: q.price,
						upload: q.Upload, counts: q.HTTP.Method == http.MethodPost}
				}
				if terms.Notify != nil {
					one.Notice = noticeOf(terms, h.Limit, key)
				}
				s.tokens.enforced = s.tokens.enforced || !h.Independent
			}
		} else if source.Header == "" {
			continue
		}
		s.headers = s.headers || source.Header != ""
		s.hits = append(s.hits, one)
	}
	if s.hits == nil {
		return nil
	}
	if s.tokens != nil {
		s.bill = newBill(site, q)
	}
	if s.paths || s.tokens != nil {
		q.HTTP.Header.Set("Accept-Encoding", "identity") // without it, any encoding would be acceptable
	}
	return s
}

// ReadHeaders reads the headers of a response, final or informational, before they are sent, and removes the
// headers with costs, and under a limit of tokens the provider's headers of limits. Several Settlings may
// read the same header. Callers then restore the proxy's own headers.
func ReadHeaders(status int, h http.Header, settlings ...*Settling) {
	final := status >= http.StatusOK || status == http.StatusSwitchingProtocols
	for _, s := range settlings {
		s.mu.Lock()
		if final && !s.ended {
			s.start(status, h)
		}
		s.mu.Unlock()
	}
	for _, s := range settlings {
		if s.headers {
			s.remove(h)
		}
		if s.tokens != nil && s.tokens.enforced {
			respond.RemoveProviders(status, h)
		}
	}
}

// start reads the final headers. The caller holds the mutex.
func (s *Settling) start(status int, h http.Header) {
	s.status = status
	s.empty = s.empty || status == http.StatusNoContent || status == http.StatusNotModified
	if s.headers {
		s.read(h)
	}
	if s.paths {
		s.body = usage.NewFrames(h, &bufferedBytes, s.readCosts, s.readCosts)
	}
	if s.tokens != nil {
		s.tokens.reader = usage.New(h, &bufferedBytes)
	}
}

// read reads the costs in headers or trailers.
func (s *Settling) read(h http.Header) {
	for i := range s.hits {
		one := &s.hits[i]
		name := one.source.Header
		if values := h[name]; len(values) > 0 { // no header has the name ""
			one.values = values
		} else if values := h[http.TrailerPrefix+name]; len(values) > 0 {
			one.values = values
		}
	}
}

// remove removes the headers and trailers with costs.
func (s *Settling) remove(h http.Header) {
	for i := range s.hits {
		delete(h, s.hits[i].source.Header)
		delete(h, http.TrailerPrefix+s.hits[i].source.Header)
	}
}

// End settles the hits. Callers call it once, after the response, which may be incomplete. status is the
// status of an error response that an outer handler will send, or 0. h holds the headers, and any trailers.
func (s *Settling) End(status int, h http.Header) {
	s.mu.Lock()
	defer s.mu.Unlock()
	later := false
	switch {
	case s.status != 0:
	case status == 0:
		s.start(http.StatusOK, h) // the server sends the headers of a handler that has sent nothing
		if s.tokens != nil && s.tokens.enforced {
			respond.RemoveProviders(http.StatusOK, h)
		}
	case s.client.Err() != nil:
		s.status = clientLeft
	default:
		s.status = status
		later = s.tokens != nil && s.tokens.upload != nil && s.tokens.upload.settleLater(s)
	}
	if s.headers {
		s.read(h)
		s.remove(h)
	}
	s.ended = true
	if later {
		return
	}
	if s.body != nil && s.body.Waiting() ||
		s.tokens != nil && s.tokens.reader != nil && s.tokens.reader.Waiting() {
		go s.settleLate() // the response does not end before the handler returns
		return
	}
	s.settle()
}

// settleLate settles in its own goroutine, because parsing the body takes time.
func (s *Settling) settleLate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		if failure := recover(); failure != nil && s.body != nil {
			s.body.Release()
		}
	}()
	s.settle()
}

// settle settles the hits, unless it has done so. The caller holds the mutex.
func (s *Settling) settle() {
	if s.settled {
		return
	}
	s.settled = true
	if s.running != 0 {
		defer s.leave()
	}
	if s.body != nil {
		s.body.End()
	}
	if s.tokens != nil {
		if s.tokens.reader != nil {
			s.tokens.usage = s.tokens.reader.End()
		}
		s.setCost()
		s.tokens.fill(s.bill)
	}
	store, settles := s.site.Store.(settler)
	defer s.release() // even after a panic
	for i := range s.hits {
		one := &s.hits[i]
		if one.Limit == nil {
			continue
		}
		if one.source.Unit != "" {
			one.Units, one.outcome, one.err = s.tokensOf(one)
		} else {
			one.Units, one.outcome, one.err = s.costOf(one)
		}
		switch {
		case one.outcome != SettledSame: // a stream without usage is missing
		case one.Units > one.Cost:
			one.outcome = SettledMore
		case one.Units < one.Cost:
			one.outcome = SettledLess
		}
		charges := one.Units != one.Cost
		if one.Limit.Reserves {
			charges = one.Units > 0 ||
				one.Cost == 0 && (s.status < http.StatusBadRequest || s.status == clientLeft)
		}
		if one.source.Unit == option.Money && s.tokens.shares != nil && s.tokens.price != nil {
			one.Rest = one.Units*1000 - s.tokens.cost
		}
		if charges {
			s.bill.Charges = append(s.bill.Charges, one.Charge)
		}
	}
	if settles && len(s.bill.Charges) > 0 {
		store.Settle(s.bill)
	}
	if s.site.Used != nil {
		s.reportUsed()
	}
	tells := s.site.History != nil || s.site.Settled != nil
	for i := range s.hits {
		one := &s.hits[i]
		if one.Limit != nil && (tells || one.err != nil) {
			s.tell(one)
		}
	}
}

// release ends the slots of the hits. It has no effect on those that a settlement has ended.
func (s *Settling) release() {
	for i := range s.hits {
		s.hits[i].Hold.Release()
	}
}

// tell records, counts and logs the settlement of a hit.
func (s *Settling) tell(one *settledHit) {
	site := s.site
	prefix := one.Limit.Prefix
	if site.History != nil && !one.repeated {
		s.recorded.Prefix, s.recorded.Unit = prefix, one.Limit.Unit
		s.recorded.Units = one.Units
		history.SetCost(site.History, &s.recorded)
	}
	if site.Settled != nil {
		site.Settled(prefix, one.outcome)
	}
	if one.err == nil || site.Log == nil {
		return
	}
	sampler := &site.invalid
	if one.outcome == SettledMissing {
		sampler = &site.missing
	}
	if dropped, ok := sampler.Allow(time.Now(), time.Minute); ok {
		site.Log(host.Line{Level: host.Warn, Text: "a request is charged an estimate", Prefix: prefix,
			Err: one.err, Dropped: dropped})
	}
}

// costOf returns the cost of a hit in the response, except in tokens. Without a valid one, it returns the
// charged cost.
func (s *Settling) costOf(one *settledHit) (int64, SettledCost, error) {
	source := one.source
	wrong := &ratelimit.FieldError{Field: "settle " + source.Text}
	switch {
	case source.Bytes:
		return s.sent, SettledSame, nil
	case source.Statuses != nil:
		for _, status := range source.Statuses {
			if status == s.status {
				return source.Cost, SettledSame, nil
			}
		}
		if s.status == clientLeft {
			return one.Cost, SettledSame, nil
		}
		return source.Else, SettledSame, nil
	case s.status >= http.StatusInternalServerError:
		return 0, SettledSame, nil // an upstream that has failed has done nothing
	case source.Path != nil && s.body != nil && s.body.Invalid != "":
		wrong.Value = s.body.Invalid
		wrong.Want = "a body that can be read"
		return one.Cost, SettledInvalid, wrong
	case one.values == nil:
		return one.Cost, SettledMissing, nil
	}
	text := strings.Join(one.values, ", ")
	if cost, ok := parseCost(text, source.Path != nil); ok {
		return cost, SettledSame, nil
	}
	const maxShown = 40
	if len(text) > maxShown {
		text = text[:maxShown] + "…"
	}
	wrong.Value = text
	wrong.Want = "a whole number from 0 to 9007199254740992 in the response"
	return one.Cost, SettledInvalid, wrong
}
