package serve

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Settling watches the response of a request that passed. At the end of the response, it settles the
// request's hits: the store charges or refunds the difference between the charge and the real cost, or on
// limits that reserve, charges the real cost and ends what the hit holds. One goroutine at a time calls
// ReadHeaders and Write.
//
// A Settling has these phases:
//
//	made      status is 0, and writer is nil
//	begun     Begin has set writer, and number in a process
//	responds  ReadHeaders has set status, and sent grows; after a hijack, hijacked is set
//	ended     End or Stop has set ended, and gone if the client had left; later parts are not read
//	settled   settle has set settled: in End, settleWithin after it, or for an Upload that nobody has read,
//	          when the client's request ends
//
// Stop also sets stopped, after which writes fail.
type Settling struct {
	site         *Site
	hits         []settledHit
	readsHeaders bool                // a hit has its cost in a header
	readsBody    bool                // a hit has its cost in the body
	body         *usage.Frames       // nil before the response, or without readsBody
	tokens       *tokens             // nil if no hit counts tokens
	empty        bool                // the response has no body: the method is HEAD, or the status 204 or 304
	writer       http.ResponseWriter // of the response; nil before Begin
	stopped      int32               // 1 after Stop; atomic
	settlesLate  bool                // settle it with others if many run, as in Traefik
	many         bool                // many were decided together with it

	mu     sync.Mutex  // guards the fields below, also while a part of the body is sent
	status int         // 0 before the response
	sent   int64       // bytes of the body
	header http.Header // of the response, if it is read for tokens
	start  []byte      // the first bytes of the body, up to startLength, while there is no tokens.reader
	ended  bool        // later writes by outer handlers do not count
	gone   bool        // the client had left before the end; afterwards, the server ends client
	// hijacked reports that the connection is no longer the writer's.
	hijacked bool
	settled  bool  // settle has run
	number   int64 // its number in Site.running; 0 before Begin

	client      context.Context  // the request's context, which ends early if the client leaves
	costPending []bool           // a true for each hit of the request with a cost that settle sets
	recorded    history.RealCost // the record to complete, if there is a history
	bill        *batch.Bill      // with Charges from settle on
}

// clientLeft is the status of a request if its client left before the response.
const clientLeft = 499

// settler is a store that can settle, such as a proxy's store.
type settler interface{ Settle(bills ...*batch.Bill) }

// settledHit is a hit with the setting settle. If the hit was not charged, its Limit is nil: the hit is not
// settled, and only the header with its cost is removed.
type settledHit struct {
	// The interpreter looks for a promoted field, such as Key, in the fields before the embedded struct, too.
	batch.Charge

	source   *option.CostSource
	values   []string // the texts of the cost in the response; nil without one
	repeated bool     // see policy.Terms

	// Set by settle: how the real cost differs from the charge, and why it is an estimate, or nil.
	kind          SettledCost
	err           error
	storeEndsHold bool
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

// newSettlings sets the Settlings of requests that pass and have something to settle.
func newSettlings(all []*Request) {
	var counted []*Request // with limits of tokens
	var bills []*batch.Bill
	made := make([]*Settling, len(all))
	for k, q := range all {
		s := &Settling{site: q.Site, client: q.HTTP.Context(), costPending: make([]bool, len(q.Hits)),
			empty: q.HTTP.Method == http.MethodHead, bill: &batch.Bill{}, settlesLate: q.Writer != nil,
			many: len(all) > fewRunning}
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
				key := h.Key
				if h.Secret || len(key) > ratelimit.MaxKey || strings.Trim(key, plainKey) != "" {
					key = h.StoredKey()
				}
				one.Charge = batch.Charge{Limit: h.Limit, Key: key, Subject: h.Subject,
					Unit: string(source.Unit), Charged: h.Cost, DecidedAt: d.DecidedAt,
					Reset: d.Reset.UnixMicro(), Source: d.Source}
				if free {
					one.Charged = 0
				}
				if h.Limit.Reserves {
					one.Hold = h.Hold
				}
				s.costPending[i] = true
				s.readsBody = s.readsBody || source.Path != nil
				if source.Unit != "" {
					if s.tokens == nil {
						s.tokens = &tokens{prompt: q.prompt, price: q.price,
							upload: q.Upload, counts: q.HTTP.Method == http.MethodPost}
						counted = append(counted, q)
						bills = append(bills, s.bill)
					}
					if terms.Notify != nil {
						one.Notice = noticeOf(terms, h.Limit, key)
					}
					s.tokens.enforced = s.tokens.enforced || !h.Independent
				}
			} else if source.Header == "" {
				continue
			}
			s.readsHeaders = s.readsHeaders || source.Header != ""
			s.hits = append(s.hits, one)
		}
		if s.hits == nil {
			continue
		}
		if s.readsBody || s.tokens != nil {
			q.HTTP.Header.Set("Accept-Encoding", "identity") // without it, any encoding would be acceptable
		}
		made[k] = s
	}
	setBills(counted, bills)
	for k, q := range all {
		q.Settling = made[k] // after all that can panic, since a second call makes no other
		if q.Settling != nil && q.Flight != nil {
			q.Flight.hasSettling = true
		}
	}
}

// ReadHeaders reads the headers of a response, final or informational, before they are sent, and removes the
// headers with costs, and under a limit of tokens those in which the provider of a language model describes
// the limits of its own account. Several Settlings may read the same header. Callers then restore the proxy's
// own headers. In a response with status 429, the X-RateLimit headers stay, because another limit in this
// proxy may have refused the request.
func ReadHeaders(status int, h http.Header, settlings ...*Settling) {
	final := status >= http.StatusOK || status == http.StatusSwitchingProtocols
	enforced := false
	for _, s := range settlings {
		s.mu.Lock()
		if final && !s.ended {
			s.status = status
			s.empty = s.empty || status == http.StatusNoContent || status == http.StatusNotModified
			if s.readsHeaders {
				s.read(h)
			}
			if s.readsBody {
				s.readBody(h)
			}
			if s.tokens != nil {
				s.header = h.Clone()
			}
		}
		s.mu.Unlock()
		enforced = enforced || s.tokens != nil && s.tokens.enforced
	}
	for _, s := range settlings {
		if s.readsHeaders {
			s.remove(h)
		}
	}
	if !enforced {
		return
	}
	for name := range h {
		lower := strings.ToLower(name)
		if strings.HasPrefix(lower, "anthropic-ratelimit-") || strings.HasPrefix(lower, "x-ratelimit-") &&
			(status != http.StatusTooManyRequests || name != "X-Ratelimit-Limit" &&
				name != "X-Ratelimit-Remaining" && name != "X-Ratelimit-Reset") {
			delete(h, name)
		}
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

// End settles the hits. Callers call it once, after the response, which may be incomplete. outer is the
// status of an error response that an outer handler will send, or 0; a deferred End reads it when it runs. h
// holds the headers, and any trailers.
func (s *Settling) End(outer *int, h http.Header) {
	status := *outer
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = s.client.Err() != nil
	later := false
	switch {
	case s.status != 0:
	case status == 0:
		s.mu.Unlock()
		ReadHeaders(http.StatusOK, h, s) // the server sends the headers of a handler that has sent nothing
		s.mu.Lock()
	case s.gone:
		s.status = clientLeft
	default:
		s.status = status
		later = s.tokens != nil && s.tokens.upload != nil && s.tokens.upload.postpone(s)
	}
	if s.readsHeaders {
		s.read(h)
		s.remove(h)
	}
	s.ended = true
	if later {
		return
	}
	waits := s.settlesLate && s.number != 0 && (s.many || atomic.LoadInt32(s.site.busy) > fewRunning)
	if s.body != nil && (waits || s.body.Waiting()) ||
		s.header != nil && (waits || s.tokens.reader != nil && s.tokens.reader.Waiting()) {
		s.settleSoon() // the response does not end before the handler returns
		return
	}
	settle(s)
}
