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
	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Settling watches the response of a request that passed, and settles the request's hits at its end: the
// store charges or refunds the difference between the charge and the real cost. One goroutine at a time calls
// Header and Body.
type Settling struct {
	site    *Site
	hits    []settledHit
	headers []string     // headers with costs, even of hits that were not charged and so are not settled
	body    *settledBody // nil if no hit needs the body's text
	head    bool         // the client gets no body
	status  int          // 0 before the response
	ended   bool         // later writes by outer handlers do not count
	sent    int64        // bytes of the body; atomic

	client   context.Context // ends early if the client leaves
	requests int             // the number of the request's hits
	recorded history.Settled // the record to complete, if there is a history
}

// clientLeft is the status of a request if its client left before the response.
const clientLeft = 499

// settler is a store that can settle, such as those of proxies.
type settler interface{ Settle(s *batch.Settlement) }

// settledHit is a hit that is to be settled.
type settledHit struct {
	at    int // of the hits of the request
	how   *settings.Settle
	cost  int64 // what was charged
	text  string
	found bool // text is that of the response
	batch.Settlement
}

// SettleOutcome is the outcome of the settlement of a hit.
type SettleOutcome string

// The values of SettleOutcome.
const (
	SettledMore    SettleOutcome = "more"    // the request cost more than it was charged
	SettledLess    SettleOutcome = "less"    // it cost less
	SettledSame    SettleOutcome = "same"    // it cost what it was charged
	SettledMissing SettleOutcome = "missing" // the response does not have the cost
	SettledInvalid SettleOutcome = "invalid" // the response has text that cannot be a cost
)

// SettleOutcomes lists all outcomes.
var SettleOutcomes = []SettleOutcome{SettledMore, SettledLess, SettledSame, SettledMissing, SettledInvalid}

// NewSettling returns the Settling of a request that passed, or nil if there is nothing to settle.
func NewSettling(site *Site, q *Request) *Settling {
	var s *Settling
	settles := q.Limits.Settles
	for i := range q.Hits {
		var how *settings.Settle
		if i < len(settles) {
			how = settles[i]
		} else if i-len(settles) < len(q.Verdict.Marks) {
			how = q.Verdict.Marks[i-len(settles)].Settle
		}
		h := &q.Hits[i]
		d := &q.Decisions[i]
		if how == nil {
			continue
		}
		charged := d.Allowed && d.DecidedAt != 0 && !h.Peek && h.Cost >= 1 &&
			h.Limit.Algorithm != ratelimit.InFlight
		if !charged && how.Header == "" {
			continue
		}
		if s == nil {
			s = &Settling{site: site, client: q.HTTP.Context(), requests: len(q.Hits)}
		}
		if how.Header != "" {
			s.headers = append(s.headers, how.Header)
		}
		if !charged {
			continue
		}
		if how.Path != nil && s.body == nil {
			s.body = &settledBody{}
		}
		one := settledHit{at: i, how: how, cost: h.Cost, text: "", found: false}
		one.Limit = h.Limit
		one.Key = h.StoredKey()
		one.Subject = h.Subject
		one.DecidedAt = d.DecidedAt
		one.Reset = d.Reset.UnixMicro()
		one.Source = d.Source
		s.hits = append(s.hits, one)
	}
	return s
}

// Header reads the headers of a response before they are sent, and those of an informational response. It
// removes the headers with costs.
func (s *Settling) Header(status int, h http.Header) {
	if s.ended {
		s.remove(h)
		return
	}
	final := status >= http.StatusOK || status == http.StatusSwitchingProtocols
	if final {
		s.status = status
		s.read(h)
	}
	s.remove(h)
	if final && s.body != nil {
		s.body.begin(h)
	}
}

// Headers calls Header for the Settlings of several handlers, which may read the same header.
func Headers(all []*Settling, status int, h http.Header) {
	for _, s := range all {
		seen := h
		if len(all) > 1 {
			seen = h.Clone()
		}
		s.Header(status, seen)
	}
	for _, s := range all {
		s.remove(h)
	}
}

// read reads the headers or trailers with costs.
func (s *Settling) read(h http.Header) {
	for i := range s.hits {
		one := &s.hits[i]
		values := h[one.how.Header]
		if len(values) == 0 {
			values = h[http.TrailerPrefix+one.how.Header]
		}
		if one.how.Header != "" && len(values) > 0 {
			one.text = strings.Join(values, ", ")
			one.found = true
		}
	}
}

// remove removes the headers with costs.
func (s *Settling) remove(h http.Header) {
	for _, name := range s.headers {
		delete(h, name)
		delete(h, http.TrailerPrefix+name)
	}
}

// Head marks the request as a HEAD, so that the client gets no body.
func (s *Settling) Head() { s.head = true }

// Body reads a part of the body that was sent.
func (s *Settling) Body(part []byte) {
	if s.head {
		return
	}
	atomic.AddInt64(&s.sent, int64(len(part)))
	if s.body != nil && !s.ended {
		s.body.write(part, s.hits)
	}
}

// Sent counts n bytes of the body, for a Settling that does not read the body.
func (s *Settling) Sent(n int64) {
	if !s.head {
		atomic.AddInt64(&s.sent, n)
	}
}

// ReadsBody reports whether Body needs the text.
func (s *Settling) ReadsBody() bool { return s.body != nil }

// End settles the hits. Callers call it once, after the response, which may be incomplete. failed is the
// status of a response that an outer handler will send, or 0. h holds the headers, and any trailers.
func (s *Settling) End(failed int, h http.Header) {
	switch {
	case s.status == 0 && failed == 0:
		s.Header(http.StatusOK, h) // the server sends the headers of a handler that has sent nothing
	case s.status == 0 && s.client.Err() != nil:
		s.status = clientLeft
	case s.status == 0:
		s.status = failed
	}
	s.read(h)
	s.remove(h)
	s.ended = true
	if s.body != nil && s.body.whole() {
		go s.settleLate() // the response does not end before the handler returns
		return
	}
	s.settle()
}

// settleLate settles in its own goroutine, because parsing the body takes time.
func (s *Settling) settleLate() {
	defer func() {
		if failure := recover(); failure != nil {
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
	store, settles := s.site.Store.(settler)
	for i := range s.hits {
		one := &s.hits[i]
		cost, outcome, err := s.costOf(one)
		if err != nil || outcome == SettledMissing {
			cost = one.cost
		} else {
			one.Back = one.cost - cost
			if one.Back != 0 {
				settlement := one.Settlement
				if settles {
					store.Settle(&settlement)
				}
			}
			switch {
			case one.Back < 0:
				outcome = SettledMore
			case one.Back > 0:
				outcome = SettledLess
			}
		}
		if s.site.History != nil {
			s.recorded.Prefix = one.Limit.Prefix
			s.recorded.Units = cost
			history.Settle(s.site.History, &s.recorded)
		}
		s.report(one.Limit.Prefix, outcome, err)
	}
}

// attach stores in s what Settle needs of the record, and returns which hits of the request s settles.
func (s *Settling) attach(r *history.Record) []bool {
	s.recorded = history.Settled{Time: r.Time, User: r.User, KeyID: r.KeyID, Prefix: "",
		Endpoint: r.Endpoint, Units: 0}
	unsettled := make([]bool, s.requests)
	for i := range s.hits {
		unsettled[s.hits[i].at] = true
	}
	return unsettled
}

// report counts a settled hit, and logs a response with an invalid cost, at most once a minute.
func (s *Settling) report(prefix string, outcome SettleOutcome, err error) {
	site := s.site
	if site.Settled != nil {
		site.Settled(prefix, outcome)
	}
	if err == nil || site.Log == nil {
		return
	}
	if dropped, ok := site.invalid.Next(time.Now(), time.Minute); ok {
		site.Log(host.Line{Level: host.Warn, Text: "a request stays charged as estimated", Prefix: prefix,
			Err: err, Dropped: dropped})
	}
}

// costOf returns the cost of a hit according to the response.
func (s *Settling) costOf(one *settledHit) (int64, SettleOutcome, error) {
	how := one.how
	switch {
	case s.status == 0:
		return 0, SettledMissing, nil
	case how.Bytes:
		return atomic.LoadInt64(&s.sent), SettledSame, nil
	case how.Statuses != nil:
		for _, status := range how.Statuses {
			if status == s.status {
				return how.Cost, SettledSame, nil
			}
		}
		return how.Else, SettledSame, nil
	case s.status >= http.StatusInternalServerError:
		return 0, SettledSame, nil // an upstream that has failed has done nothing
	case how.Path != nil && s.body.invalid != "":
		return 0, SettledInvalid, &ratelimit.FieldError{Field: "settle " + how.Text, Value: s.body.invalid,
			Want: "of a body that can be read"}
	case !one.found:
		return 0, SettledMissing, nil
	}
	cost, err := strconv.ParseInt(one.text, 10, 64)
	if err != nil || cost < 0 || cost > ratelimit.MaxEvents {
		const most = 40
		text := one.text
		if len(text) > most {
			text = text[:most] + "…"
		}
		return 0, SettledInvalid, &ratelimit.FieldError{Field: "settle " + how.Text, Value: text,
			Want: "a whole number from 0 to 9007199254740992 in the response"}
	}
	return cost, SettledSame, nil
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
