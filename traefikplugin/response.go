package traefikplugin

import (
	"bufio"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// upstream serves the requests that pass. Unless the policy is both, it replaces the
// X-RateLimit headers of the responses.
//
// A reverse proxy clears the headers of a response after each informational response, such as 103. Only
// a responseWriter can set them again. With the policy both, the first response without them shows that
// the upstream sends informational responses. From then on there is a responseWriter.
type upstream struct {
	next    http.Handler
	both    bool
	tighter bool
	informs int32 // 1 if the policy is both and a response has lost its headers; atomic
}

func newUpstream(next http.Handler, policy edge.HeaderPolicy) *upstream {
	return &upstream{next: next, both: policy == edge.BothHeaders, tighter: policy == edge.TighterHeaders}
}

// pass serves a request that passes. It is a function, and upstream is no http.Handler,
// because the interpreter takes longer for a method, and for a handler that is interpreted.
func pass(u *upstream, w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	limit := header["X-Ratelimit-Limit"]
	if len(limit) == 0 { // without a decision there are no headers
		u.next.ServeHTTP(w, r)
		return
	}
	overage := header["X-Ratelimit-Overage"]
	if u.both && overage == nil && atomic.LoadInt32(&u.informs) == 0 {
		u.next.ServeHTTP(w, r)
		if len(header["X-Ratelimit-Limit"]) == 0 {
			atomic.StoreInt32(&u.informs, 1)
		}
		return
	}
	own := &responseWriter{
		ResponseWriter: w, both: u.both, tighter: u.tighter,
		limit: limit, remaining: header["X-Ratelimit-Remaining"], reset: header["X-Ratelimit-Reset"], overage: overage,
	}
	if len(r.Header["Upgrade"]) == 0 {
		u.next.ServeHTTP(own, r)
	} else {
		u.next.ServeHTTP(&upgradeWriter{responseWriter: own}, r)
	}
	if !own.wrote && (own.informs || !u.both) { // the server sends the headers of a handler that has sent nothing
		restore(own, w.Header())
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

	// Our own headers. The slices have no spare capacity, so Header.Add does not change them.
	limit, remaining, reset []string
	overage                 []string // nil is none

	both    bool   // the upstream's headers are kept
	tighter bool   // they are kept if they tell of less remaining
	informs bool   // there was an informational response
	wrote   bool   // the final headers
	length  string // the Content-Length, or ""
}

// WriteHeader sends the headers. If the length of the body is unknown, the response may be a
// stream. Its first part may come late. A client must not wait for the headers until then.
func (w *responseWriter) WriteHeader(status int) {
	if w.wrote {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	h := w.ResponseWriter.Header()
	if values := h["Content-Length"]; len(values) != 0 {
		w.length = values[0]
	}
	switch {
	case status == http.StatusTooManyRequests && len(h["X-Ratelimit-Limit"]) == 1:
		// Another limit in this proxy may have refused the request: its headers stay.
		// An upstream's header would have been added to our own.
	case w.both && !w.informs:
	case w.both || w.tighter:
		restore(w, h)
	default: // what restore does, without a call
		h["X-Ratelimit-Limit"] = w.limit
		h["X-Ratelimit-Remaining"] = w.remaining
		h["X-Ratelimit-Reset"] = w.reset
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

// Write sends a part of the body. It compares its length as text, which needs one call.
func (w *responseWriter) Write(body []byte) (int, error) {
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	n, err := w.ResponseWriter.Write(body)
	if w.length == "" || w.length != strconv.Itoa(len(body)) {
		flush(w)
	}
	return n, err
}

// flush has no error: without a flush, the client gets the text later.
func flush(w *responseWriter) {
	_ = http.NewResponseController(w.ResponseWriter).Flush()
}

// restore replaces the headers as the policy says.
func restore(w *responseWriter, h http.Header) {
	policy := edge.OurHeaders
	if w.tighter {
		policy = edge.TighterHeaders
	}
	if w.both {
		policy = edge.BothHeaders
	}
	edge.RestoreHeaders(h, edge.OwnHeaders{w.limit[0], w.remaining[0], w.reset[0]}, policy)
}

// upgradeWriter is the responseWriter of a request to change the protocol. A reverse proxy
// takes over the connection, adds the headers of the upstream to those of the writer, and
// sends what Header then returns.
type upgradeWriter struct {
	responseWriter *responseWriter
	hijacked       bool
}

func (w *upgradeWriter) Header() http.Header {
	h := w.responseWriter.ResponseWriter.Header()
	if w.hijacked && (w.responseWriter.informs || !w.responseWriter.both) {
		restore(w.responseWriter, h)
	}
	return h
}

func (w *upgradeWriter) WriteHeader(status int) { w.responseWriter.WriteHeader(status) }

func (w *upgradeWriter) Write(body []byte) (int, error) { return w.responseWriter.Write(body) }

func (w *upgradeWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(w.responseWriter.ResponseWriter).Hijack()
	w.hijacked = err == nil
	return conn, buffered, err
}
