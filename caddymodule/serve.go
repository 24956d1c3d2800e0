package caddymodule

import (
	"net/http"
	"net/netip"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// ServeHTTP passes the request on or refuses it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	var flight *serve.Flight
	defer func() { flight.End() }() // also after a panic
	w, settling, err := h.admit(w, r, &flight)
	if err != nil || w == nil {
		return err
	}
	if flight != nil {
		// Caddy's placeholders and matchers refer to r, so the next handlers must get r itself and not a
		// copy.
		before := r.Context()
		*r = *r.WithContext(flight.Context)
		defer func() { *r = *r.WithContext(before) }() // error routes do not end with the flight
	}
	if settling != nil {
		return serveSettled(settling, w, r, next)
	}
	return next.ServeHTTP(w, r)
}

// freeRequests pools Requests, to save allocations.
var freeRequests = sync.Pool{New: func() any { return new(serve.Request) }}

// admit decides a request. If the request passes, admit returns the writer for its response, and the
// settlement to end after the response, or nil. Otherwise admit has responded and returns nil, or returns an
// error for the site's error routes. admit sets *flight if the request holds slots.
func (h *Handler) admit(
	w http.ResponseWriter, r *http.Request, flight **serve.Flight,
) (http.ResponseWriter, *serve.Settling, error) {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		repl = caddy.NewReplacer()
	}
	q := freeRequests.Get().(*serve.Request)
	q.HTTP, q.Data = r, repl
	defer func() {
		*flight = q.Flight
		q.Release()
		freeRequests.Put(q)
	}()
	if err := serve.Decide(h.site, q); err != nil {
		return nil, nil, err
	}
	if len(q.Hits) > 0 {
		h.count(q)
	} else if !q.Asked {
		return w, nil, nil // no limit applies to the request
	}
	own := responseWriterIn(w) // the writer of an earlier handler
	if own == nil {
		own = &responseWriter{ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}
		repl.Map(own.facts.value)
		if q.Outcome.Status == 0 {
			w = own
		}
	}
	own.facts.set(q)
	h.report(r, &own.facts)
	respond.SetFields(w.Header(), h.site.Fields, h.site.Salt, &q.Outcome, q.Hits, q.Decisions)
	own.own = respond.OwnIn(w.Header(), own.memory[:])
	if q.Settling != nil {
		own.settling = append(own.settling, q.Settling)
	}
	if q.Outcome.Status != 0 {
		return nil, nil, h.refuse(w, r, q)
	}
	return w, q.Settling, nil
}

// clientAddress returns the address of the client according to trusted_proxies, or the zero Addr without a
// valid one. Caddy never assumes an address.
func clientAddress(r *http.Request) (address netip.Addr, assumed bool) {
	text, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	address, _ = netip.ParseAddr(text)
	return address.Unmap().WithZone(""), false // a client can choose a long zone
}
