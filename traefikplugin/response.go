package traefikplugin

import (
	"bufio"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// upstream serves the requests that pass, with the X-RateLimit headers of the limit.
//
// Only a responseWriter can change the headers of a response: a reverse proxy adds those of its upstream to
// ours when it sends the response, and clears all of them after an informational response, such as 103. The
// first responses get one. If none of them needs it, the next ones get none until one would have needed it,
// because most upstreams have no such headers, and the interpreter takes long for each method of a
// responseWriter.
type upstream struct {
	next http.Handler

	// wraps is the number of next responses that get a responseWriter; atomic. It grows if one of them needs
	// it. If it is below 0, all responses get one.
	wraps int32
}

// maxWraps is the number of responses that get a responseWriter, at first and after one that needed it, until
// no response gets one. It is a variable for a test.
var maxWraps int32 = 10000

func newUpstream(next http.Handler, fields settings.Fields) *upstream {
	u := &upstream{next: next, wraps: maxWraps}
	if fields.IETF {
		u.wraps = -1 // there may be RateLimit and RateLimit-Policy
	}
	return u
}

// pass serves a request that passes. It is a function, and upstream does not implement http.Handler, because
// the interpreter takes longer for a method, and for an interpreted handler. It contains only the frequent
// case.
func pass(u *upstream, w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	remaining := header["X-Ratelimit-Remaining"]
	if len(remaining) == 0 || atomic.LoadInt32(&u.wraps) != 0 {
		passWrapped(u, w, r)
		return
	}
	u.next.ServeHTTP(w, r)
	after := header["X-Ratelimit-Remaining"]
	if len(after) != 1 || after[0] != remaining[0] || len(header["X-Ratelimit-Limit"]) != 1 ||
		len(header["X-Ratelimit-Reset"]) != 1 {
		atomic.StoreInt32(&u.wraps, maxWraps) // this response would have needed a responseWriter
	}
}

// passWrapped is pass with a responseWriter. A request without a decision has no headers of ours, and needs
// no responseWriter.
func passWrapped(u *upstream, w http.ResponseWriter, r *http.Request) {
	own := newWriter(w)
	if own.own == nil && own.fields == nil {
		u.next.ServeHTTP(w, r)
		return
	}
	serveWrapped(u, own, r)
	n := atomic.LoadInt32(&u.wraps)
	if n > 0 && own.needed {
		atomic.StoreInt32(&u.wraps, maxWraps)
	} else if n > 0 {
		atomic.CompareAndSwapInt32(&u.wraps, n, n-1)
	}
}

// passSettled is pass for a request that is settled after its response. The response always gets a
// responseWriter.
func passSettled(u *upstream, settling *serve.Settling, w http.ResponseWriter, r *http.Request) {
	failed := http.StatusInternalServerError
	// The upstream panics if the client has left.
	defer func() { settling.End(failed, w.Header()) }()
	own := newWriter(w)
	own.settling = settling
	serveWrapped(u, own, r)
	failed = 0
}

// newWriter returns a responseWriter that keeps the headers now in w.
func newWriter(w http.ResponseWriter) *responseWriter {
	header := w.Header()
	return &responseWriter{ResponseWriter: w, settling: nil, own: respond.OwnHeadersIn(header),
		fields: respond.OwnFieldsIn(header), overage: header["X-Ratelimit-Overage"]}
}

// serveWrapped serves a request with a responseWriter.
func serveWrapped(u *upstream, own *responseWriter, r *http.Request) {
	if len(r.Header["Upgrade"]) == 0 {
		u.next.ServeHTTP(own, r)
	} else {
		u.next.ServeHTTP(&upgradeWriter{responseWriter: own}, r)
	}
	if !own.wrote { // the server sends the headers of a handler that has sent nothing
		restore(own, own.ResponseWriter.Header())
	}
}

// responseWriter replaces the headers at the moment when they are sent. Yaegi gives a native
// handler only the methods of http.ResponseWriter and Hijack, so the handler cannot flush the
// response. Therefore responseWriter flushes it, unless the first Write has the whole body.
//
// The interpreter takes 2 to 3 µs for each call of a method from native code. The method
// Header is that of the writer inside, which is native.
type responseWriter struct {
	http.ResponseWriter

	own      respond.OwnHeaders // of the limit, or nil
	overage  []string           // nil is none
	fields   *respond.OwnFields // nil is none
	settling *serve.Settling    // nil if there is nothing to settle

	informs bool   // there was an informational response
	wrote   bool   // the final headers
	needed  bool   // the X-RateLimit headers were not those of the limit
	length  string // the Content-Length, or ""
}

// WriteHeader sends the headers. A response without a length may be a stream with a late first part, so
// WriteHeader flushes its headers.
func (w *responseWriter) WriteHeader(status int) {
	if w.wrote {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	h := w.ResponseWriter.Header()
	if values := h["Content-Length"]; len(values) != 0 {
		w.length = values[0]
	}
	if status == http.StatusTooManyRequests && len(h["X-Ratelimit-Limit"]) == 1 {
		// Another limit in this proxy may have refused the request: its headers stay.
		// An upstream's header would have been added to our own.
		respond.RestoreFields(h, w.fields)
	} else {
		restore(w, h)
	}
	if w.settling != nil {
		serve.ReadHeaders(status, h, w.settling)
	}
	if w.informs && w.overage != nil && len(h["X-Ratelimit-Overage"]) == 0 {
		h["X-Ratelimit-Overage"] = w.overage
	}
	w.wrote = status >= 200 || status == http.StatusSwitchingProtocols
	w.informs = w.informs || !w.wrote
	w.ResponseWriter.WriteHeader(status)
	if w.length == "" && status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified {
		flush(w)
	}
}

// Write sends a part of the body. It flushes unless the part is the whole body. It compares lengths as text,
// which takes one call.
func (w *responseWriter) Write(body []byte) (int, error) {
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	n, err := w.ResponseWriter.Write(body)
	if w.settling != nil {
		w.settling.Body(body[:n])
	}
	if w.length == "" || w.length != strconv.Itoa(len(body)) {
		flush(w)
	}
	return n, err
}

// flush flushes the response. It ignores errors, which only delay the text.
func flush(w *responseWriter) {
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}

// restore replaces the headers of an upstream by those of the limit.
func restore(w *responseWriter, h http.Header) {
	respond.RestoreFields(h, w.fields)
	if respond.RestoreHeaders(h, w.own) {
		w.needed = true
	}
}

// upgradeWriter is the responseWriter of a request to change the protocol. A reverse proxy
// takes over the connection, adds the headers of the upstream to those of the writer, and
// sends what Header then returns.
type upgradeWriter struct {
	*responseWriter
	hijacked bool
}

func (w *upgradeWriter) Header() http.Header {
	h := w.ResponseWriter.Header()
	if w.hijacked {
		restore(w.responseWriter, h)
		if w.settling != nil {
			serve.ReadHeaders(http.StatusSwitchingProtocols, h, w.settling)
		}
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
