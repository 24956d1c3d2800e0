package caddymodule

import (
	"bufio"
	"io"
	"net"
	"net/http"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// WriteHeader implements http.ResponseWriter.
func (w *responseWriter) WriteHeader(status int) {
	if !w.wrote {
		serve.ReadHeaders(status, w.Header(), w.settling...)
		respond.Restore(w.Header(), w.headers)
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
	return serve.Write(w.ResponseWriter, body, nil, w.settling...)
}

// ReadFrom implements io.ReaderFrom.
func (w *responseWriter) ReadFrom(body io.Reader) (int64, error) {
	w.send()
	if len(w.settling) > 0 {
		return io.Copy(struct{ io.Writer }{w}, body)
	}
	return w.ResponseWriterWrapper.ReadFrom(body)
}

// FlushError flushes the response for http.ResponseController.
func (w *responseWriter) FlushError() error {
	w.send()
	return serve.Flush(w.ResponseWriter, w.settling...)
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
