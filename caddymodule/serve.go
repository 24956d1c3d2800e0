package caddymodule

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
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

// responseWriter replaces the X-RateLimit headers of an upstream by the module's headers. An informational
// response (such as 103) may remove the headers, so responseWriter also sets them again after such a
// response. All handlers of a request share one responseWriter.
type responseWriter struct {
	caddyhttp.ResponseWriterWrapper
	own    respond.Own // the headers of all limits so far
	memory [respond.OwnCount]string
	wrote  bool // the final headers were written

	facts    facts             // the facts for placeholders, which the latest handler sets
	settling []*serve.Settling // an element for each handler that settles the request
}

// responseWriterIn returns the responseWriter of an earlier handler, or nil.
func responseWriterIn(w http.ResponseWriter) *responseWriter {
	for {
		if own, ok := w.(*responseWriter); ok {
			return own
		}
		wrapper, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return nil
		}
		w = wrapper.Unwrap()
	}
}

// WriteHeader implements http.ResponseWriter.
func (w *responseWriter) WriteHeader(status int) {
	if !w.wrote {
		respond.Restore(w.Header(), w.own)
		serve.ReadHeaders(status, w.Header(), w.settling...)
		w.wrote = status >= http.StatusOK || status == http.StatusSwitchingProtocols
	}
	w.ResponseWriter.WriteHeader(status)
}

// send calls WriteHeader unless a handler has called it.
func (w *responseWriter) send() {
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
}

// Write implements http.ResponseWriter.
func (w *responseWriter) Write(body []byte) (int, error) {
	w.send()
	n, err := w.ResponseWriter.Write(body)
	for _, s := range w.settling {
		s.Body(body[:n])
	}
	return n, err
}

// ReadFrom implements io.ReaderFrom.
func (w *responseWriter) ReadFrom(body io.Reader) (int64, error) {
	w.send()
	if slices.ContainsFunc(w.settling, (*serve.Settling).ReadsBody) {
		return io.Copy(struct{ io.Writer }{w}, body)
	}
	n, err := w.ResponseWriterWrapper.ReadFrom(body)
	for _, s := range w.settling {
		s.Sent(n)
	}
	return n, err
}

// FlushError flushes the response for http.ResponseController.
func (w *responseWriter) FlushError() error {
	w.send()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Flush implements http.Flusher.
func (w *responseWriter) Flush() { _ = w.FlushError() } // a Flusher has no error

// Hijack implements http.Hijacker.
func (w *responseWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil && w.settling != nil {
		conn = serve.SettledConn(conn, w.settling...)
	}
	return conn, buffered, err
}

// Interface guards
var (
	_ http.Flusher  = (*responseWriter)(nil)
	_ http.Hijacker = (*responseWriter)(nil)
	_ http.Pusher   = (*responseWriter)(nil)
	_ io.ReaderFrom = (*responseWriter)(nil)
)
