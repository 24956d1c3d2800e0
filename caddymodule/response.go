package caddymodule

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// responseWriter replaces the X-RateLimit headers of an upstream by the module's headers. It also sets the
// headers again after an informational response (such as 103), which may remove them. All handlers of a
// request share one responseWriter.
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
