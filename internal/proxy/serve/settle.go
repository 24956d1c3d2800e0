package serve

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
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
// ReadHeaders and Body.
type Settling struct {
	site   *Site
	hits   []settledHit
	body   *settledBody // nil if no hit needs the body's text
	tokens *tokens      // nil if no hit counts tokens
	head   bool         // the request has the method HEAD, so the response has no body
	status int          // 0 before the response
	ended  bool         // later writes by outer handlers do not count
	sent   int64        // bytes of the body; atomic

	client    context.Context // the request's context, which ends early if the client leaves
	unsettled []bool          // a true for each hit of the request that is settled
	recorded  history.Settled // the record to complete, if there is a history
	bill      *batch.Bill     // nil unless a hit is on a limit that reserves
}

// clientLeft is the status of a request if its client left before the response.
const clientLeft = 499

// settler is a store that can settle, such as a proxy's store.
type settler interface {
	Settle(s *batch.Settlement)
	SettleBill(s *batch.Bill)
}

// settledHit is a hit with the setting settle. If the hit was not charged, its Limit is nil: the hit is not
// settled, and only the header with its cost is removed.
type settledHit struct {
	// The interpreter looks for a promoted field, such as Key, in the fields before the embedded struct, too.
	batch.Settlement

	how    *option.Settle
	cost   int64           // the charged cost, or what the hit holds
	slot   *ratelimit.Slot // the Slot of a hit on a limit that reserves
	values []string        // the texts of the cost in the response; nil without one
	notice *batch.Notice   // nil without one
	again  bool            // see isAgain

	// Set by settle: the real cost, how it differs from the charge, and why it is an estimate, or nil.
	units   int64
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
		head: q.HTTP.Method == http.MethodHead}
	settles := q.Limits.Settles
	for i := range q.Hits {
		var how *option.Settle
		if zone := zoneAt(q, i); zone >= 0 {
			how = settles[zone]
		} else if m := MarkOf(q, i); m != nil {
			how = m.Settle
		}
		h := &q.Hits[i]
		d := &q.Decisions[i]
		if how == nil {
			continue
		}
		one := settledHit{how: how, cost: h.Cost, again: isAgain(q, i)}
		charged := d.Allowed && d.DecidedAt != 0 && h.Limit.Algorithm != ratelimit.InFlight ||
			h.Limit.Reserves && (d.Allowed || q.Outcome.Err != nil) // costs even without a decision
		if charged && !h.Peek && h.Cost >= 1 {
			if h.Limit.Reserves && q.Flight != nil {
				one.slot = q.Flight.detach(h.Slot)
			}
			one.Settlement = batch.Settlement{Limit: h.Limit, Key: h.StoredKey(), Subject: h.Subject,
				DecidedAt: d.DecidedAt, Reset: d.Reset.UnixMicro(), Source: d.Source}
			s.unsettled[i] = true
			if how.Path != nil {
				s.body = &settledBody{}
			}
			if how.CountsTokens() {
				if s.tokens == nil {
					s.tokens = &tokens{input: option.InputOf(lengthOf(q)), price: q.price,
						counts: q.HTTP.Method == http.MethodPost}
				}
				if output := outputOf(q, how); output > s.tokens.output {
					s.tokens.output = output
				}
				one.notice = noticeOf(MarkOf(q, i), h.Limit, h.StoredKey())
				s.tokens.enforced = s.tokens.enforced || !h.Independent
			}
		} else if how.Header == "" {
			continue
		}
		s.hits = append(s.hits, one)
	}
	if s.hits == nil {
		return nil
	}
	if s.tokens != nil {
		s.bill = newBill(q)
	}
	if s.ReadsBody() {
		q.HTTP.Header.Del("Accept-Encoding") // so that the body is plain
	}
	return s
}

// ReadHeaders reads the headers of a response, final or informational, before they are sent, and removes the
// headers with costs, and under a limit of tokens the provider's headers of limits. Several Settlings may
// read the same header. Callers then restore the proxy's own headers.
func ReadHeaders(status int, h http.Header, settlings ...*Settling) {
	final := status >= http.StatusOK || status == http.StatusSwitchingProtocols
	for _, s := range settlings {
		if final && !s.ended {
			s.status = status
			s.read(h)
			if s.body != nil {
				s.body.start(h)
			}
			if s.tokens != nil {
				s.tokens.reader = usage.New(h, &bufferedBytes)
			}
		}
	}
	for _, s := range settlings {
		s.remove(h)
		if s.tokens != nil && s.tokens.enforced {
			respond.RemoveProviders(status, h)
		}
	}
}

// read reads the costs in headers or trailers.
func (s *Settling) read(h http.Header) {
	for i := range s.hits {
		one := &s.hits[i]
		name := one.how.Header
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
		delete(h, s.hits[i].how.Header)
		delete(h, http.TrailerPrefix+s.hits[i].how.Header)
	}
}

// Body reads a part of the body that was sent.
func (s *Settling) Body(part []byte) {
	s.Sent(int64(len(part)))
	if s.body != nil && !s.head && !s.ended {
		s.body.write(part, s.hits)
	}
	if s.tokens != nil && s.tokens.reader != nil && !s.head && !s.ended {
		_, _ = s.tokens.reader.Write(part) // it has no error
	}
}

// Sent counts n bytes of the body, for a Settling that does not read the body.
func (s *Settling) Sent(n int64) {
	if !s.head {
		atomic.AddInt64(&s.sent, n)
	}
}

// ReadsBody reports whether Body needs the text of the body.
func (s *Settling) ReadsBody() bool { return s.body != nil || s.tokens != nil }

// End settles the hits. Callers call it once, after the response, which may be incomplete. status is the
// status of an error response that an outer handler will send, or 0. h holds the headers, and any trailers.
func (s *Settling) End(status int, h http.Header) {
	switch {
	case s.status != 0:
	case status == 0:
		ReadHeaders(http.StatusOK, h, s) // the server sends the headers of a handler that has sent nothing
	case s.client.Err() != nil:
		s.status = clientLeft
	default:
		s.status = status
	}
	s.read(h)
	s.remove(h)
	s.ended = true
	if s.body != nil && s.body.whole() || s.tokens != nil && s.tokens.holds() {
		go s.settleLate() // the response does not end before the handler returns
		return
	}
	s.settle()
}

// settleLate settles in its own goroutine, because parsing the body takes time.
func (s *Settling) settleLate() {
	defer func() {
		if failure := recover(); failure != nil && s.body != nil {
			s.body.release()
		}
	}()
	s.settle()
}

func (s *Settling) settle() {
	if s.body != nil {
		s.body.end(s.hits)
		s.body.release()
	}
	if s.tokens != nil && s.tokens.reader != nil {
		s.tokens.usage = s.tokens.reader.End()
	}
	store, settles := s.site.Store.(settler)
	defer s.release() // even after a panic
	for i := range s.hits {
		one := &s.hits[i]
		if one.Limit == nil {
			continue
		}
		one.units, one.outcome, one.err = s.costOf(one)
		if one.Refund = one.cost - one.units; one.Refund != 0 {
			switch {
			case one.outcome != SettledSame: // a stream without usage is missing
			case one.Refund < 0:
				one.outcome = SettledMore
			default:
				one.outcome = SettledLess
			}
			settlement := one.Settlement
			if settles && !one.Limit.Reserves {
				store.Settle(&settlement)
			}
		}
		if one.Limit.Reserves && one.units > 0 {
			s.bill.Charges = append(s.bill.Charges, batch.Charge{Limit: one.Limit, Key: one.Key,
				Subject: one.Subject, Unit: string(one.how.Unit), Units: one.units, Slot: one.slot,
				Notice: one.notice})
		}
	}
	if s.bill != nil {
		u := &s.tokens.usage
		s.bill.Input, s.bill.CacheRead = u.Input, u.CacheRead
		s.bill.CacheWrite, s.bill.Output = u.CacheWrite, u.Output
		s.bill.Money = -1
		if s.tokens.price != nil {
			money, _, _ := s.tokensOf(&settledHit{how: &option.Settle{Unit: option.Money}})
			s.bill.Money = money
		}
	}
	if settles && s.bill != nil && len(s.bill.Charges) > 0 {
		store.SettleBill(s.bill)
	}
	s.release()
	s.tellUsed()
	for i := range s.hits {
		if s.hits[i].Limit != nil {
			s.tell(&s.hits[i])
		}
	}
}

// release ends the slots of the hits. It has no effect on those that a settlement has ended.
func (s *Settling) release() {
	for i := range s.hits {
		s.hits[i].slot.Release()
	}
}

// tell records, counts and logs the settlement of a hit.
func (s *Settling) tell(one *settledHit) {
	site := s.site
	prefix := one.Limit.Prefix
	if site.History != nil && !one.again {
		s.recorded.Prefix = prefix
		s.recorded.Units = one.units
		history.Settle(site.History, &s.recorded)
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

// costOf returns the cost of a hit in the response. Without a valid one, it returns the charged cost.
func (s *Settling) costOf(one *settledHit) (int64, SettledCost, error) {
	how := one.how
	wrong := &ratelimit.FieldError{Field: "settle " + how.Text}
	switch {
	case how.CountsTokens():
		return s.tokensOf(one)
	case how.Bytes:
		return atomic.LoadInt64(&s.sent), SettledSame, nil
	case how.Statuses != nil:
		for _, status := range how.Statuses {
			if status == s.status {
				return how.Cost, SettledSame, nil
			}
		}
		if s.status == clientLeft {
			return one.cost, SettledSame, nil
		}
		return how.Else, SettledSame, nil
	case s.status >= http.StatusInternalServerError:
		return 0, SettledSame, nil // an upstream that has failed has done nothing
	case how.Path != nil && s.body.invalid != "":
		wrong.Value = s.body.invalid
		wrong.Want = "a body that can be read"
		return one.cost, SettledInvalid, wrong
	case one.values == nil:
		return one.cost, SettledMissing, nil
	}
	text := strings.Join(one.values, ", ")
	cost, err := strconv.ParseInt(text, 10, 64)
	if err == nil && cost >= 0 && cost <= ratelimit.MaxEvents {
		return cost, SettledSame, nil
	}
	const maxShown = 40
	if len(text) > maxShown {
		text = text[:maxShown] + "…"
	}
	wrong.Value = text
	wrong.Want = "a whole number from 0 to 9007199254740992 in the response"
	return one.cost, SettledInvalid, wrong
}

// settledConn counts the bytes sent on a hijacked connection, such as a WebSocket.
type settledConn struct {
	net.Conn
	settling []*Settling
}

// SettledConn wraps a hijacked connection, so that the Settlings count the bytes sent on it.
func SettledConn(c net.Conn, settling ...*Settling) net.Conn {
	return &settledConn{c, settling}
}

// Write implements net.Conn.
func (c *settledConn) Write(part []byte) (int, error) {
	n, err := c.Conn.Write(part)
	for _, s := range c.settling {
		s.Sent(int64(n))
	}
	return n, err
}
