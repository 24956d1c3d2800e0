package caddymodule

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// ServeHTTP passes the request on, or refuses it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	var flight *edge.Flight
	defer func() { flight.End() }() // also after a panic
	w, settling, err := h.admit(w, r, &flight)
	if err != nil || w == nil {
		return err
	}
	if flight != nil {
		// Caddy's placeholders and matchers hold r, so that the handlers behind this one must get no copy of it.
		before := r.Context()
		*r = *r.WithContext(flight.Context)
		defer func() { *r = *r.WithContext(before) }() // error routes do not end with the flight
	}
	if settling != nil {
		return serveSettled(settling, w, r, next)
	}
	return next.ServeHTTP(w, r)
}

// admit returns the writer of the response if the request passes, and what is to be settled after it, or nil. If
// it does not pass, admit has responded and returns nil, or returns an error for the site's error routes. It
// sets the flight of a request that has one.
func (h *Handler) admit(w http.ResponseWriter, r *http.Request, flight **edge.Flight) (http.ResponseWriter, *edge.Settling, error) {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		repl = caddy.NewReplacer()
	}
	hits := freeRequestHits.Get().(*requestHits)
	defer hits.release()
	asked := time.Now()
	exempt := h.exempt != nil && h.exempt.IsExempt(r.Header, clientAddress(r))
	var outcome edge.Outcome
	if h.policy != nil {
		outcome = h.policy.askPolicy(h, r, repl, hits)
		setPolicyPlaceholders(repl, &hits.policy)
	}
	failure := outcome.Err // of the policy
	if outcome.Status == 0 {
		if err := h.addHits(r, repl, hits, exempt); err != nil {
			return nil, nil, err
		}
		if len(hits.hits) > 0 {
			if h.flights || len(hits.policy.Hits) > 0 && !hits.policy.Simple {
				h.fly(r, hits)
				*flight = hits.flight
			}
			outcome = h.take(hits, asked)
		} else if h.policy == nil {
			return w, nil, nil
		}
	}
	if failure != nil && outcome.Status == 0 {
		// The limits let the request pass. What the policy would have said is unknown.
		outcome.Err = failure
	}
	if h.recorder != nil {
		h.recorder.record(h, r, repl, hits, &outcome, asked)
	}
	h.report(r, repl, hits, &outcome)
	if outcome.Status != 0 {
		h.setHeaders(w, hits, &outcome, h.fields)
		return nil, nil, h.refuse(w, r, hits, &outcome)
	}
	if outcome.Decision != nil {
		fields := h.fields
		fields.X = fields.X && !edge.HasLessRemaining(w.Header(), outcome.Decision.Remaining)
		w = h.setHeaders(w, hits, &outcome, fields)
	}
	if outcome.Overage > 0 && h.fields.X {
		edge.SetOverage(w.Header(), outcome.Overage)
		if changes := responseWriterIn(w); changes != nil {
			changes.overage = outcome.Overage
		}
	}
	if h.settles || len(hits.policy.Marks) > 0 && !hits.policy.Simple {
		w, settling := h.settle(w, hits)
		return w, settling, nil
	}
	return w, nil, nil
}

// addHits adds the hits of a request: those of the zones that match it, unless it is exempt, and those of the
// policy.
func (h *Handler) addHits(r *http.Request, repl *caddy.Replacer, hits *requestHits, exempt bool) error {
	for _, z := range h.zones {
		if exempt {
			break
		}
		matches, err := z.matchers.AnyMatchWithError(r)
		if err != nil {
			return err
		}
		if !matches || z.mode == policy.Off {
			continue
		}
		hit := z.hit(r, repl)
		if hit.Key == "" && z.empty.CompareAndSwap(false, true) {
			h.logger.Warn("the key of a request is empty: all such requests share one quota",
				zap.String("prefix", z.limit.Prefix), zap.String("key", z.key.text))
		}
		hits.zones = append(hits.zones, z)
		hits.hits = append(hits.hits, hit)
	}
	hits.hits = append(hits.hits, hits.policy.Hits...)
	for range hits.hits {
		hits.decisions = append(hits.decisions, ratelimit.Decision{})
	}
	return nil
}

// fly makes the flight of a request, if it has one.
func (h *Handler) fly(r *http.Request, hits *requestHits) {
	waits := false
	for _, z := range hits.zones {
		hits.waits = append(hits.waits, z.wait)
		waits = waits || z.wait != nil
	}
	if waits || edge.HasSlots(hits.hits) {
		hits.flight = edge.NewFlight(r.Context())
		hits.flight.Attach(hits.hits, hits.waits)
	}
}

// take takes the hits of a request that came at a time.
func (h *Handler) take(hits *requestHits, asked time.Time) edge.Outcome {
	decider := h.decider
	// Requests with one timeout share batches. So only a policy that took long shortens it.
	if spent := time.Since(asked); h.policy != nil && spent > decider.Timeout/10 {
		decider.Timeout = max(decider.Timeout-spent, time.Millisecond) // refusals that are known need no more
	}
	// The request's context is not used: a client that closes its connection must not
	// fail the batch that its request is in. The timeout bounds the wait.
	var outcome edge.Outcome
	if hits.flight == nil {
		outcome = decider.Take(context.Background(), hits.hits, hits.decisions, &hits.policy)
	} else {
		outcome = decider.TakeInTurn(hits.flight.Context, hits.waits, hits.hits, hits.decisions, &hits.policy)
	}
	h.duration.Observe(time.Since(asked).Seconds())
	h.count(hits, &outcome)
	return outcome
}

// setHeaders sets the headers of a response. It returns the writer for the rest of the
// response, see Handler.Headers.
func (h *Handler) setHeaders(w http.ResponseWriter, hits *requestHits, outcome *edge.Outcome, fields edge.Fields) http.ResponseWriter {
	own, ownFields := edge.SetFields(w.Header(), fields, outcome, hits.hits, hits.decisions)
	if own == nil && ownFields == nil {
		return w
	}
	changes := responseWriterIn(w)
	switch {
	case changes != nil: // that of an earlier handler
		if changes.policy == edge.BothHeaders {
			changes.policy = h.headers
		}
	case outcome.Status != 0:
		return w
	default:
		changes = &responseWriter{ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w}, policy: h.headers}
		w = changes
	}
	if own != nil {
		changes.own = own
	}
	if ownFields != nil {
		changes.fields = ownFields
	}
	return w
}

// count counts and logs an outcome.
func (h *Handler) count(hits *requestHits, outcome *edge.Outcome) {
	if h.policy != nil {
		h.countPolicy(hits, outcome)
	}
	if outcome.Err != nil {
		for _, z := range hits.zones {
			switch {
			case z.mode == policy.Shadow:
			case outcome.Status == 0:
				z.counters.errorPassed.Inc()
			default:
				z.counters.errorRefused.Inc()
			}
		}
		h.logNoDecision(outcome)
		return
	}
	if outcome.Paused {
		for _, z := range hits.zones {
			z.counters.paused.Inc()
		}
		return
	}
	if h.store.failing.Load() && decidedByPostgres(hits.decisions) && h.store.failing.CompareAndSwap(true, false) {
		h.logger.Info("the database answers again")
	}
	for i, z := range hits.zones {
		switch {
		case z.mode == policy.Shadow:
			h.countShadow(z, &hits.hits[i], &hits.decisions[i])
		case outcome.Status == 0:
			z.counters.allowed.inc(hits.decisions[i].Source)
			if hits.decisions[i].Source == ratelimit.FromLease {
				z.counters.leased.Inc()
			}
		case !hits.decisions[i].Allowed:
			z.counters.denied.inc(hits.decisions[i].Source)
			if hits.decisions[i].Source == ratelimit.FromBlocked {
				z.counters.blocked.Inc()
			}
		}
	}
	if outcome.Status == 0 {
		return
	}
	if entry := h.logger.Check(zapcore.DebugLevel, "request refused"); entry != nil {
		hit, d := &hits.hits[outcome.Hit], outcome.Decision
		entry.Write(zap.String("prefix", hit.Limit.Prefix), zap.String("key", hit.StoredKey()), zap.Int64("cost", hit.Cost),
			zap.Int64("limit", d.Limit), zap.Int64("remaining", d.Remaining), zap.Duration("retry_after", d.RetryAfter))
	}
}

// countShadow counts and logs the decision on a limit in the mode shadow.
func (h *Handler) countShadow(z *zone, hit *ratelimit.Hit, d *ratelimit.Decision) {
	switch {
	case d.Source == ratelimit.Undecided:
	case d.Allowed:
		z.counters.wouldAllow.inc(d.Source)
	default:
		z.counters.wouldDeny.inc(d.Source)
		if entry := h.logger.Check(zapcore.DebugLevel, "a limit in the mode shadow would have refused"); entry != nil {
			entry.Write(zap.String("prefix", z.limit.Prefix), zap.String("key", hit.StoredKey()), zap.Int64("limit", d.Limit), zap.Duration("retry_after", d.RetryAfter))
		}
	}
}

// decidedByPostgres reports whether the database made one of the decisions. A refusal from
// the memory of the store does not show that the database answers.
func decidedByPostgres(decisions []ratelimit.Decision) bool {
	return slices.ContainsFunc(decisions, func(d ratelimit.Decision) bool { return d.Source == ratelimit.FromPostgres })
}

// logNoDecision logs that no decision was made. All handlers on the store together log this
// at most once a second.
func (h *Handler) logNoDecision(outcome *edge.Outcome) {
	h.store.setFailing(outcome.Err)
	dropped, ok := h.store.failures.Next(time.Now())
	if !ok {
		return
	}
	level := zapcore.WarnLevel
	if outcome.Status != 0 {
		level = zapcore.ErrorLevel
	}
	h.logger.Log(level, outcome.Consequence(), zap.Error(outcome.Err), zap.Int64("not_logged", dropped))
}
