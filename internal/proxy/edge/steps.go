package edge

import (
	"errors"
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Request is a request on its way through a Site. It is used for one request after another. The goroutine that serves the
// request owns it until Release, except while Call is in a queue.
type Request struct {
	Site *Site // of a proxy that has requests decided by a queue
	HTTP *http.Request
	Data any // what the texts of a proxy need besides HTTP

	Set       *Set // the limits of the configuration that are for it
	Hits      []ratelimit.Hit
	Decisions []ratelimit.Decision
	Stored    bool    // the keys of Hits are as they are stored
	Flight    *Flight // nil if the request holds no slots

	// Set if the policy was asked. Verdict is empty if it was not.
	Asked     bool
	Key, User string // the API key, or without one the user, that the request gives
	Facts     policy.Facts
	Verdict   policy.Verdict

	Began    time.Time
	Outcome  respond.Outcome
	Settling *Settling // what is to be settled after the response; nil is nothing

	// Respond sets one of these.
	Admitted bool
	Body     string // of a refusal

	// Of a proxy that has requests decided by a queue.
	Call   *batch.Call
	Writer http.ResponseWriter

	failure error  // why the policy could not be asked
	matched []byte // which of Site.Zones are for the request
	record  history.Record
}

// Next is what follows Begin.
type Next uint8

// The values of Next.
const (
	Ended  Next = iota // there is nothing to decide: End follows
	Taking             // Take
	Queued             // Take, or a queue, which has the whole timeout
)

// Decide has a request decided: Outcome says what happens to it. This is the list of what happens to each request. The
// proxy then responds, serves the request with the context of Flight, and calls Settling.End and Flight.End after the
// response. An error is that of Zone.Match.
func Decide(s *Site, q *Request) error {
	next, err := Begin(s, q)
	if err != nil {
		return err
	}
	if next != Ended {
		Take(s, q)
	}
	End(s, q)
	return nil
}

// Begin asks the policy about a request, and finds the limits of the configuration that are for it: a matcher can use what the
// policy says.
func Begin(s *Site, q *Request) (Next, error) {
	q.Began = time.Now()
	q.Outcome = respond.Outcome{}
	q.Hits = q.Hits[:0]
	q.Decisions = q.Decisions[:0]
	q.Set = s.none
	exempt := len(s.Exempt) > 0 && isExempt(s, q)
	next := Queued
	if s.Policy != nil {
		if ask(s, q) && time.Since(q.Began) > s.Decider.Timeout/10 {
			next = Taking
		}
		if q.failure != nil {
			next = Taking
		}
		if q.Outcome.Status != 0 {
			return Ended, nil
		}
	}
	if !exempt {
		q.Set = s.all
		if s.matches {
			if err := match(s, q); err != nil {
				return Ended, err
			}
		}
	}
	if len(q.Set.Hits) == 0 && len(q.Verdict.Hits) == 0 && s.Hits == nil {
		return Ended, nil
	}
	if q.Set.Flies || q.Asked && !q.Verdict.Simple && HasSlots(q.Verdict.Hits) {
		q.Flight = NewFlight(q.HTTP.Context())
	}
	return next, nil
}

// Take makes the hits of a request and takes them, in what is left of its time.
func Take(s *Site, q *Request) {
	addHits(s, q)
	d := s.Decider
	if s.Policy != nil {
		d = s.Decider.After(q.Began, q.failure)
	}
	q.Outcome = d.Take(q)
	taken(s, q)
}

// Fail is Take for a request for which a queue has made no decision because of an error.
func Fail(s *Site, q *Request, err error) {
	addHits(s, q)
	q.Outcome = s.Decider.TakeLocal(q, err)
	taken(s, q)
}

// addHits makes the hits of a request: those of the zones that are for it, and those of the policy.
func addHits(s *Site, q *Request) {
	q.Stored = false
	q.Hits = append(q.Hits[:0], q.Set.Hits...)
	for i, z := range q.Set.Zones {
		hit := &q.Hits[i]
		SetKey(z, q, hit)
		if hit.Key == "" {
			WarnEmpty(s, z)
		}
		if q.Set.Varies {
			Vary(z, q, hit)
		}
	}
	if s.Hits != nil {
		q.Hits = append(q.Hits, s.Hits(q.HTTP)...)
	}
	q.Hits = append(q.Hits, q.Verdict.Hits...)
	q.Decisions = q.Decisions[:0]
	for i := 0; i < len(q.Hits); i++ {
		q.Decisions = append(q.Decisions, ratelimit.Decision{})
	}
	if q.Flight != nil {
		q.Flight.Attach(q.Hits)
	}
}

// taken is what follows a decision, or the error that there is none.
func taken(s *Site, q *Request) {
	if s.Reopen != nil && errors.Is(q.Outcome.Err, ratelimit.ErrClosed) {
		s.Reopen(func(store ratelimit.Store, _ *ProxyPolicy) {
			d := s.Decider
			d.UseStore(store)
			q.Outcome = d.Take(q)
		})
	}
	if s.Watcher != nil {
		s.Watcher.Decided(q)
	}
	switch { // at most one line a second for all handlers on a database, and one when it answers again
	case s.Outage == nil:
	case q.Outcome.Err != nil:
		LogNoDecision(s, q)
	case s.Outage.IsUnderWay():
		s.Outage.AnswersAgain(s.Log, q.Decisions)
	}
	if q.failure != nil && q.Outcome.Status == 0 {
		q.Outcome.Err = q.failure // the limits let the request pass. What the policy would have said is unknown
	}
}

// Delivered is Take for a request that a queue has decided: the hits and decisions of Call are those of the request.
func Delivered(q *Request) {
	q.Hits = q.Call.Hits
	q.Decisions = q.Call.Decisions
	q.Stored = true
	if !q.Asked {
		q.Began = q.Call.Arrived
	}
	q.Outcome = Judge(q)
}

// End counts and records a request, and prepares its settlement.
func End(s *Site, q *Request) {
	if !q.Asked && len(q.Hits) == 0 {
		return
	}
	s.Totals.Count(q)
	if s.History != nil {
		Record(s, q)
	}
	if q.Outcome.Status == 0 && len(q.Hits) > 0 && (q.Set.Settled || q.Asked && !q.Verdict.Simple) {
		q.Settling = NewSettling(s, q)
	}
}

// Record records a request.
func Record(s *Site, q *Request) {
	r := &q.record
	r.Time = time.Now()
	r.Duration = r.Time.Sub(q.Began)
	r.Method = q.HTTP.Method
	r.Audit = q.Set.Audit
	if q.Asked {
		if !q.Facts.Assumed {
			r.Address = q.Facts.Address
		}
		r.Host = q.Facts.Host
		r.Path = q.Facts.Path
		r.Route = q.Facts.Route
	} else {
		if address, assumed := s.Address(q.HTTP); !assumed {
			r.Address = address
		}
		r.Host = HostOf(q.HTTP)
	}
	if r.Path == "" { // also if it is ambiguous
		r.Path = Path(q.HTTP.URL.EscapedPath())
	}
	if s.Recording != nil {
		r.User = s.Recording(q.HTTP)
	}
	if s.Hidden.User {
		r.User = ""
	}
	if s.Hidden.Host {
		r.Host = ""
	}
	if s.Hidden.Path {
		r.Path = ""
	}
	hideKeys(r, q)
	SetRecord(r, q)
	history.Add(s.History, r)
	addShadows(s.History, r, q)
	*r = history.Record{}
}

// Respond sets the headers of the response to a request that was decided. Of a refusal it sets Body.
func Respond(s *Site, q *Request, h http.Header) {
	respond.SetFields(h, s.Fields, &q.Outcome, q.Hits, q.Decisions)
	q.Admitted = q.Outcome.Status == 0
	if !q.Admitted {
		q.Body = q.Outcome.Content(h)
	}
}

// Release makes a Request ready for another request. What may be a part of a long request is not kept.
func (q *Request) Release() {
	for i := range q.Hits {
		q.Hits[i] = ratelimit.Hit{}
	}
	if q.Asked {
		q.Facts = policy.Facts{}
		q.Verdict.Reset()
		q.Key = ""
		q.User = ""
		q.failure = nil
		q.Asked = false
	}
	q.HTTP = nil
	q.Writer = nil
	q.Data = nil
	q.Set = nil
	q.Flight = nil
	q.Settling = nil
	q.Stored = false
	q.Hits = q.Hits[:0]
}
