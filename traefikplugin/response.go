package traefikplugin

import (
	"bufio"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// upstream serves the requests that pass, with the X-RateLimit headers of the limit.
//
// Only a responseWriter keeps these headers in a response, because a reverse proxy adds its upstream's
// headers to ours when it sends the response, and clears all headers after an informational response, such as
// 103. But most upstreams send no X-RateLimit headers, and the interpreter takes long for each method of a
// responseWriter. So only the first responses get a responseWriter. If none of these responses needs its
// responseWriter, later responses get none, until a response would have needed it.
type upstream struct {
	next http.Handler

	// wraps is the number of next responses that get a responseWriter; atomic. A response that needs its
	// responseWriter sets wraps to maxWraps. If wraps is negative, all responses get a responseWriter.
	wraps int32
}

// maxWraps is the number of responses that get a responseWriter at first, and again after a response that
// needed it. It is a variable for a test.
var maxWraps int32 = 10000

// pass serves a request that passes. It is a function, and upstream does not implement http.Handler, because
// the interpreter takes longer for a method and for an interpreted handler. It contains only the frequent
// case. header is the header of w.
func pass(u *upstream, header http.Header, w http.ResponseWriter, r *http.Request) {
	remaining := header["X-Ratelimit-Remaining"]
	if len(remaining) == 0 || atomic.LoadInt32(&u.wraps) != 0 {
		passWrapped(u, nil, w, r)
		return
	}
	u.next.ServeHTTP(w, r)
	after := header["X-Ratelimit-Remaining"]
	if len(after) != 1 || after[0] != remaining[0] || len(header["X-Ratelimit-Limit"]) != 1 ||
		len(header["X-Ratelimit-Reset"]) != 1 {
		rewrap(u)
	}
}

// rewrap gives the next responses a responseWriter, after a response that needed one.
func rewrap(u *upstream) { atomic.StoreInt32(&u.wraps, maxWraps) }

// passWrapped is like pass but uses a responseWriter. A request without a decision has no headers of ours and
// needs no responseWriter, unless it is settled after its response: settling is nil without that.
func passWrapped(u *upstream, settling *serve.Settling, w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	status := http.StatusInternalServerError // stays if the client has left, and the upstream panics
	if settling != nil {
		defer settling.End(&status, h)
		settling.Begin(w)
	}
	own := respond.HeadersIn(h, make(respond.Headers, respond.HeaderCount))
	if own == nil && settling == nil {
		u.next.ServeHTTP(w, r)
		return
	}
	rw := &responseWriter{ResponseWriter: w, settling: settling, headers: own}
	if len(r.Header["Upgrade"]) == 0 {
		u.next.ServeHTTP(rw, r)
	} else {
		u.next.ServeHTTP(&upgradeWriter{responseWriter: rw}, r)
	}
	if !rw.wrote { // the server sends the headers of a handler that has sent nothing
		restore(rw, h)
	}
	status = 0
	n := atomic.LoadInt32(&u.wraps)
	if n <= 0 || settling != nil { // a settled response always gets one
		return
	}
	if rw.needed {
		rewrap(u)
	} else {
		atomic.CompareAndSwapInt32(&u.wraps, n, n-1)
	}
}

// responseWriter restores the headers of the limit when a response is sent. Yaegi gives a native handler only
// the methods of http.ResponseWriter and Hijack, so the handler cannot flush the response. Therefore
// responseWriter flushes it, unless the first Write has the whole body. It does not flush an error, which a
// middleware in front may replace, such as retry.
//
// The interpreter takes 2 to 3 µs for each call of a method from native code. The embedded writer's Header is
// native.
type responseWriter struct {
	http.ResponseWriter

	headers  respond.Headers // the headers of the limit
	settling *serve.Settling // nil if the request is not settled

	wrote    bool   // sent the final headers
	informed bool   // sent the headers of an informational response
	needed   bool   // the upstream changed the headers of the limit
	flushes  bool   // the response is final, and no error
	length   string // the Content-Length, or ""
}

// WriteHeader sends the headers. It flushes the headers of a response without a length, which may be a stream
// with a late first part.
func (w *responseWriter) WriteHeader(status int) {
	if w.wrote {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	h := w.ResponseWriter.Header()
	if values := h["Content-Length"]; len(values) != 0 {
		w.length = values[0]
	}
	if w.settling != nil {
		serve.ReadHeaders(status, h, w.settling)
	}
	if status == http.StatusTooManyRequests && !w.informed && len(h["X-Ratelimit-Limit"]) == 1 &&
		len(h["X-Ratelimit-Remaining"]) == 1 && len(h["X-Ratelimit-Reset"]) < 2 {
		// Another limit in this proxy may have refused the request, and its headers then stay. A header of an
		// upstream would be a second value beside ours, unless an informational response has cleared ours.
		respond.Restore(h, respond.WithoutX(w.headers))
	} else if respond.Restore(h, w.headers) {
		w.needed = true
	}
	w.wrote = status >= 200 || status == http.StatusSwitchingProtocols
	w.informed = !w.wrote
	w.flushes = status >= 200 && status < http.StatusBadRequest
	w.ResponseWriter.WriteHeader(status)
	if w.length == "" && w.flushes && status != http.StatusNoContent && status != http.StatusNotModified {
		_ = http.NewResponseController(w.ResponseWriter).Flush() // an error only delays the body
	}
}

// Write sends a part of the body. It flushes the response unless the part is the whole body. It compares
// lengths as text, because that takes only one call.
func (w *responseWriter) Write(body []byte) (int, error) {
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	flushes := w.flushes && w.length != strconv.Itoa(len(body))
	switch {
	case w.settling != nil && flushes:
		return serve.Write(w.ResponseWriter, body, w.ResponseWriter, w.settling)
	case w.settling != nil:
		return serve.Write(w.ResponseWriter, body, nil, w.settling)
	}
	n, err := w.ResponseWriter.Write(body)
	if flushes {
		_ = http.NewResponseController(w.ResponseWriter).Flush() // an error only delays the body
	}
	return n, err
}

// restore replaces an upstream's headers by the headers of the limit.
func restore(w *responseWriter, h http.Header) {
	if respond.Restore(h, w.headers) {
		w.needed = true
	}
}

// upgradeWriter is the responseWriter of a request to change the protocol. A reverse proxy hijacks the
// connection, adds the upstream's headers to the writer's, and sends the result of Header.
type upgradeWriter struct {
	*responseWriter
	hijacked bool
}

func (w *upgradeWriter) Header() http.Header {
	h := w.ResponseWriter.Header()
	if w.hijacked {
		if w.settling != nil {
			serve.ReadHeaders(http.StatusSwitchingProtocols, h, w.settling)
		}
		restore(w.responseWriter, h)
	}
	return h
}

func (w *upgradeWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.hijacked = err == nil
	if w.hijacked && w.settling != nil {
		conn = serve.SettledConn(conn, w.settling)
	}
	return conn, buffered, err
}
