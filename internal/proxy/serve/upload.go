package serve

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
)

const (
	// uploadTime bounds the time that a client takes to send an Upload.
	uploadTime = time.Minute

	// The first chunk of an Upload has firstChunk bytes, further ones have chunkSize, and the last one has
	// what is left. So a client that sends little has little held.
	firstChunk = 4 << 10
	chunkSize  = 16 << 10
)

// Upload is the body of a POST to which an enforced limit of tokens applies. It is read before the decision,
// and held until the upstream has read it, or the request ends. The upstream reads it as the body.
//
// An Upload has these phases:
//
//	made          length is -1
//	read          receive has set length and body.chunks, maybe those of an earlier Upload
//	decided       readPrompts has set Prompt and prices, or passOn a guess; promptRead is set
//	passed on     an upstream reads: body.startedReading is set, and body.unread falls
//	attempt over  in Traefik, attemptOver is set; bodies.Kept has what another attempt needs
//	request over  endRequest has dropped body.chunks and called body.postponed
type Upload struct {
	Prompt usage.Prompt // what the request asks for

	site       *Site
	body       *heldBody
	length     int64         // the length of the body, or -1 before it was read
	bound      int64         // the longest body that is read
	prices     policy.Prices // those in force when the body was read
	most       int64         // the largest output of the model for all answers; 0 if it is unknown
	promptRead bool          // Prompt was read, or is not needed
	// unpriced is the model that the body names, as people may read it, if it has no price and is refused.
	unpriced string
	// optional reports that only shadow rules need the body: the request passes even if it cannot be read.
	optional bool
	money    bool            // an enforced limit in money applies
	unsized  bool            // the request does not say the length of the body
	client   context.Context // of the request, before the Flights of all handlers
	// oneAttempt reports that only one attempt reads the Upload, as in Traefik. In Caddy, a further upstream
	// may read it after it was closed, and a route for errors after its end.
	oneAttempt  bool
	attemptOver bool // guarded by body.mu
}

// heldBody is what the Uploads of a client's request share: those of its handlers, and of attempts to serve
// it.
type heldBody struct {
	sender         string // the sender that has a share of all bodies; set with counted
	counted        bool   // Site.bodies counts the chunks: there were several
	startedReading int32  // 1 once an upstream reads; atomic

	mu        sync.Mutex // guards the fields below once an upstream reads: it may do so after the request
	postponed []func()   // called by settlePostponed
	extra     []byte     // read after chunks, and not kept there
	chunks    [][]byte   // what no upstream has read
	at        int        // how much of the first chunk an upstream has read
	unread    int64      // the length of what no upstream has read
}

// freeChunks has chunks of chunkSize. Without it, the memory of bodies would grow by half until it is
// collected.
var freeChunks = sync.Pool{New: func() any { return make([]byte, 0, chunkSize) }}

// ReadUpload reads the Upload of a request and reports, as FindLimits does, whether the store has to decide
// the request. Before that, it refuses the request if a limit is known to be used up. The time for reading
// counts neither for the decision nor in the history.
func ReadUpload(q *Request) (needsStore bool) {
	if inPostgres, ok := q.Site.Store.(*store.Store); ok && inPostgres.Remembers() &&
		refusedFromMemory(q, inPostgres) {
		return false
	}
	u := q.Upload
	began := time.Now()
	if reason := receive(u, q); reason != policy.NoReason {
		refuseUpload(q, reason)
	} else {
		u.body.unread = u.length
		var body io.ReadCloser = u
		q.HTTP.Body = body
		if u.length > shortBody {
			parsing <- true
			defer func() { <-parsing }()
		}
		// Fill reads others in one loop, for which a batch does not wait long.
		chunks := u.body.chunks
		if len(chunks) != 1 || len(q.HTTP.URL.Path) > firstChunk || chunks[0][0] != '{' ||
			bytes.Count(chunks[0], comma) > fewCommas {
			readPrompts([]*Request{q})
		}
	}
	took := time.Since(began)
	q.Began = q.Began.Add(took)
	q.Arrived = q.Arrived.Add(took)
	q.usesStore = q.Outcome.Status == 0 // even if a panic ends Fill
	return q.usesStore
}

// refuseUpload refuses a request for its body. If only shadow rules need the body, the request passes.
func refuseUpload(q *Request, reason policy.Reason) {
	u := q.Upload
	if u.optional {
		u.passOn(q)
		return
	}
	u.dropChunks()
	q.Outcome = refusal(http.StatusBadRequest, reason)
	o := &q.Outcome
	switch reason {
	case policy.NoPrice:
		nameUnpriced(q)
	case policy.SlowBody:
		o.Status = http.StatusRequestTimeout
	case policy.LongBody:
		o.Status = http.StatusRequestEntityTooLarge
		o.Message = "Body too long: at most " + strconv.FormatInt(u.bound, 10) + " bytes"
	case policy.ManyBodies:
		o.Status = http.StatusServiceUnavailable
		o.RetryAfter = overloadedWait
	case policy.GoneBody:
		o.Status = http.StatusBadGateway
	}
}

// refusedFromMemory reports whether a limit of a request is known to be used up. If so, it sets the
// decisions. The body is not read yet, so limits of tokens are asked for one unit, and limits in money are
// not asked if the model may be free.
func refusedFromMemory(q *Request, inPostgres *store.Store) bool {
	q.free = q.Upload.money && q.Site.Policy.Rules.HasFree()
	Fill([]*Request{q})
	if q.Decisions = inPostgres.RefuseRemembered(q.Hits); q.Decisions == nil {
		q.free = false
		q.Hits = q.Hits[:0]
		q.usesStore = false
	}
	return q.usesStore
}

// receive reads a body into an Upload, and returns the reason to refuse the request.
func receive(u *Upload, q *Request) policy.Reason {
	r := q.HTTP
	const encoding = "Content-Encoding"
	if len(r.Header[encoding]) > 0 || policy.OtherSpelling(r.Header, encoding) {
		for _, value := range policy.HeaderValues(r.Header, encoding) {
			if value != "" && !strings.EqualFold(value, "identity") {
				return policy.AmbiguousBody
			}
		}
	}
	if r.ContentLength > u.bound {
		return policy.LongBody
	}
	if r.ContentLength >= 0 {
		u.bound = r.ContentLength
	}
	var kept any // the Upload of an earlier attempt
	if q.Earlier == nil {
		kept, _ = u.site.bodies.Kept.LoadAndDelete(u.client.Done())
	}
	if (q.Earlier != nil || kept != nil) && u.takeOver(q.Earlier, kept) {
		return u.fault()
	}
	conn := q.Conn
	if conn == nil {
		conn = q.Writer
	}
	late := int32(0)
	timer := time.AfterFunc(uploadTime, func() {
		atomic.StoreInt32(&late, 1)
		// A read that waits then fails. Traefik's writers do not support this: its own timeout ends the read.
		// An optional Upload passes on what comes later, which a deadline would end.
		if conn != nil && !u.optional {
			_ = http.NewResponseController(conn).SetReadDeadline(time.Unix(1, 0))
		}
	})
	reason := u.readAll(q, &late)
	if !timer.Stop() {
		return policy.SlowBody
	}
	// A body that is empty after an upstream has read it was not made again: see takeOver.
	if reason == policy.NoReason && (u.length < r.ContentLength ||
		u.length == 0 && atomic.LoadInt32(&u.body.startedReading) != 0) {
		return policy.GoneBody
	}
	return reason
}

// readAll reads the body of a request until its end, or until late is 1.
func (u *Upload) readAll(q *Request, late *int32) policy.Reason {
	body := q.HTTP.Body
	b := u.body
	next := make([]byte, 1) // read before there is a chunk for it
	length := int64(0)
	for atomic.LoadInt32(late) == 0 {
		n := 0
		var err error
		last := len(b.chunks) - 1
		if last >= 0 && len(b.chunks[last]) < cap(b.chunks[last]) {
			chunk := b.chunks[last]
			n, err = body.Read(chunk[len(chunk):cap(chunk)])
			b.chunks[last] = chunk[:len(chunk)+n]
		} else if n, err = body.Read(next); n > 0 {
			if length >= u.bound {
				b.extra = next
				return policy.LongBody
			}
			size := u.bound - length
			if last < 0 {
				if size > firstChunk {
					size = firstChunk
				}
				b.chunks = append(b.chunks, make([]byte, 0, size))
			} else if !u.grow(q, size) {
				b.extra = next
				return policy.ManyBodies
			}
			b.chunks[last+1] = append(b.chunks[last+1], next[0])
		}
		length += int64(n)
		if errors.Is(err, io.EOF) {
			u.length = length
			return policy.NoReason
		}
		if errors.Is(err, http.ErrBodyReadAfterClose) {
			return policy.GoneBody
		}
		if err != nil {
			var tooLong *http.MaxBytesError // by an earlier handler
			if errors.As(err, &tooLong) {
				u.bound = tooLong.Limit
				return policy.LongBody
			}
			return policy.SlowBody
		}
	}
	return policy.SlowBody
}

// grow adds a chunk of at most size bytes. It reports whether the site may hold it. A body of one chunk is
// not counted, because it takes no more than the buffers of its connection.
func (u *Upload) grow(q *Request, size int64) bool {
	if size > chunkSize {
		size = chunkSize
	}
	b := u.body
	counted := size
	if len(b.chunks) == 1 {
		counted += int64(cap(b.chunks[0]))
		v := &q.Verdict
		switch {
		case q.HasVerdict && v.KeyID != 0:
			b.sender = "key " + strconv.FormatInt(v.KeyID, 10)
		case q.HasVerdict && v.User != "":
			b.sender = "user " + v.User
		default:
			b.sender = reading.Client(&q.Input)
		}
	}
	if !u.site.bodies.Acquire(b.sender, counted, u.site.MaxBody) {
		return false
	}
	b.counted = true
	if size == chunkSize {
		b.chunks = append(b.chunks, freeChunks.Get().([]byte))
	} else {
		b.chunks = append(b.chunks, make([]byte, 0, size))
	}
	return true
}

// passOn makes what was read of a body, and the rest of it, the body of the request.
func (u *Upload) passOn(q *Request) {
	b := u.body
	rest := q.HTTP.Body
	b.unread = 0
	for _, chunk := range b.chunks {
		b.unread += int64(len(chunk))
	}
	var own io.Reader = u
	q.HTTP.Body = io.NopCloser(io.MultiReader(own, bytes.NewReader(b.extra), rest)) // the server closes rest
	u.length = q.HTTP.ContentLength
	u.promptRead = true
	u.Prompt = usage.Prompt{}
	q.prompt = option.InputOf(u.length)
}

// Read implements io.Reader.
func (u *Upload) Read(part []byte) (int, error) {
	b := u.body
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unread > 0 && (u.attemptOver || len(b.chunks) == 0) {
		return 0, http.ErrBodyReadAfterClose
	}
	atomic.StoreInt32(&b.startedReading, 1)
	if b.unread == 0 {
		return 0, io.EOF
	}
	chunk := b.chunks[0]
	n := copy(part, chunk[b.at:])
	b.at += n
	b.unread -= int64(n)
	if b.at == len(chunk) {
		if b.counted {
			u.dropChunk(chunk)
		}
		b.chunks = b.chunks[1:]
		b.at = 0
	}
	return n, nil
}

// dropChunk drops a chunk. The caller holds the mutex.
func (u *Upload) dropChunk(chunk []byte) {
	if u.body.counted {
		u.site.bodies.Acquire(u.body.sender, -int64(cap(chunk)), 0) // releases
	}
	if cap(chunk) == chunkSize {
		freeChunks.Put(chunk[:0]) //nolint:staticcheck // its header is small beside the chunk
	}
}
