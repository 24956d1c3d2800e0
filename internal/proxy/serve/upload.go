package serve

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
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

	// shortBody is the longest body that is parsed at any time.
	shortBody = 64 << 10
)

// Upload is the body of a POST to which an enforced limit of tokens applies. It is read before the decision,
// and held until the upstream has read it, or the request ends. The upstream reads it as the body.
type Upload struct {
	Prompt usage.Prompt // what the request asks for

	site   *Site
	body   *heldBody
	length int64         // the length of the body, or -1 before it was read
	bound  int64         // the longest body that is read
	prices policy.Prices // those in force when the body was read
	// unpriced is the model that the body names, as people may read it, if it has no price and is refused.
	unpriced string
	// optional reports that only shadow rules need the body: the request passes even if it cannot be read.
	optional bool
	money    bool            // an enforced limit in money applies
	unsized  bool            // the request does not say the length of the body
	client   context.Context // of the request, before the Flights of all handlers
	// once reports that only one attempt reads the Upload, as in Traefik. In Caddy, a further upstream may
	// read it after it was closed, and a route for errors after its end.
	once bool
	over bool // this attempt is over; guarded by body.mu
}

// heldBody is what the Uploads of a client's request share: those of its handlers, and of attempts to serve
// it.
type heldBody struct {
	sender string // the sender that has a share of all bodies
	read   int32  // 1 once an upstream reads; atomic

	mu     sync.Mutex // guards the fields below once an upstream reads: it may do so after the request
	late   []func()   // called by settleLate
	extra  []byte     // read after chunks, and not kept there
	chunks [][]byte   // what no upstream has read; Site.bodies counts their capacities
	at     int        // how much of the first chunk an upstream has read
	unread int64      // the length of what no upstream has read
}

// freeChunks has chunks of chunkSize. Without it, the memory of bodies would grow by half until it is
// collected.
var freeChunks = sync.Pool{New: func() any { return make([]byte, 0, chunkSize) }}

// parsing bounds how many long bodies are parsed at once, because parsing takes several times their memory.
// More of them than processors would not be parsed faster.
var parsing = make(chan bool, runtime.GOMAXPROCS(0))

// newUpload returns the Upload of a request, or nil if its body is not read. units are those of its policy.
func newUpload(q *Request, units policyUnits) *Upload {
	v := &q.Verdict
	enforced := q.Limits.EnforcesTokens || units.tokens
	ofShadow := q.HTTP.ContentLength >= 0 && units.shadowMoney
	if q.HTTP.Method != http.MethodPost || !enforced && !ofShadow {
		return nil
	}
	u := &Upload{site: q.Site, length: -1, bound: q.Site.MaxBody, optional: !enforced,
		body: &heldBody{}, money: units.money, client: clientIn(q),
		unsized: q.HTTP.ContentLength < 0, once: q.Writer != nil}
	switch {
	case q.HasVerdict && v.KeyID != 0:
		u.body.sender = "key " + strconv.FormatInt(v.KeyID, 10)
	case q.HasVerdict && v.User != "":
		u.body.sender = "user " + v.User
	default:
		u.body.sender = reading.Client(&q.Input)
	}
	return u
}

// uploadStatuses has the statuses of the reasons for which ReadUpload refuses a request.
var uploadStatuses = map[policy.Reason]int{
	policy.NoPrice:       http.StatusBadRequest,
	policy.AmbiguousBody: http.StatusBadRequest, policy.Background: http.StatusBadRequest,
	policy.Batch: http.StatusBadRequest, policy.BinaryStream: http.StatusBadRequest,
	policy.SlowBody: http.StatusRequestTimeout, policy.LongBody: http.StatusRequestEntityTooLarge,
	policy.ManyBodies: http.StatusServiceUnavailable, policy.GoneBody: http.StatusBadGateway,
}

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
	reason := receive(u, q)
	if reason == policy.NoReason {
		reason = u.prepare(q)
	}
	if reason != policy.NoReason && u.optional {
		u.passOn(q)
		reason = policy.NoReason
	}
	took := time.Since(began)
	q.Began = q.Began.Add(took)
	q.Arrived = q.Arrived.Add(took)
	if reason == policy.NoReason {
		return true
	}
	u.dropChunks()
	q.Outcome = refusal(uploadStatuses[reason], reason)
	switch reason {
	case policy.ManyBodies:
		q.Outcome.RetryAfter = overloadedWait
	case policy.LongBody:
		q.Outcome.Message = "Body too long: at most " + strconv.FormatInt(u.bound, 10) + " bytes"
	case policy.NoPrice:
		nameUnpriced(q)
	}
	return false
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
	if u.takeOver(q) {
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
	reason := u.readAll(r.Body, &late)
	if !timer.Stop() {
		return policy.SlowBody
	}
	if reason == policy.NoReason && (u.length < r.ContentLength ||
		u.length == 0 && atomic.LoadInt32(&u.body.read) != 0) {
		return policy.GoneBody
	}
	return reason
}

// readAll reads a body until its end, or until late is 1.
func (u *Upload) readAll(body io.Reader, late *int32) policy.Reason {
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
			if last < 0 && size > firstChunk {
				size = firstChunk
			}
			if !u.grow(size) {
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

// grow adds a chunk of at most size bytes. It reports whether the site may hold it.
func (u *Upload) grow(size int64) bool {
	if size > chunkSize {
		size = chunkSize
	}
	b := u.body
	if !u.site.bodies.Acquire(b.sender, size, u.site.MaxBody) {
		return false
	}
	if size == chunkSize {
		b.chunks = append(b.chunks, freeChunks.Get().([]byte))
	} else {
		b.chunks = append(b.chunks, make([]byte, 0, size))
	}
	return true
}

// prepare reads what the body asks for, and makes the Upload the body of the request. It returns the reason
// to refuse the request.
func (u *Upload) prepare(q *Request) policy.Reason {
	b := u.body
	var text []byte
	if len(b.chunks) == 1 {
		text = b.chunks[0]
	} else if len(b.chunks) > 1 {
		if u.length > shortBody {
			parsing <- true
			defer func() { <-parsing }()
		}
		text = bytes.Join(b.chunks, nil)
	}
	prompt, err := usage.ReadPrompt(q.HTTP.URL.Path, q.HTTP.Header["Content-Type"], text)
	switch {
	case err != nil:
		return policy.AmbiguousBody
	case prompt.Background:
		return policy.Background
	case prompt.Binary:
		return policy.BinaryStream
	case prompt.Batch && !passesBatches(q):
		return policy.Batch
	}
	u.Prompt = prompt
	q.prompt = prompt.MediaTokens
	if n := u.length - prompt.MediaLength; n > 0 { // as option.InputOf does
		q.prompt += (n + 3) / 4
	}
	u.Prompt.Model = option.ModelName(prompt.Model)
	if q.HasVerdict {
		u.prices = q.Site.Policy.Rules.Prices()
		q.price = u.prices.Of(prompt.Model)
		q.free = q.price != nil && q.price.Free
	}
	if q.price == nil && u.money {
		return policy.NoPrice
	}
	b.unread = u.length
	var body io.ReadCloser = u
	q.HTTP.Body = body
	return policy.NoReason
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
	q.prompt = option.InputOf(u.length)
}

// Read implements io.Reader.
func (u *Upload) Read(part []byte) (int, error) {
	b := u.body
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unread > 0 && (u.over || len(b.chunks) == 0) {
		return 0, http.ErrBodyReadAfterClose
	}
	atomic.StoreInt32(&b.read, 1)
	if b.unread == 0 {
		return 0, io.EOF
	}
	chunk := b.chunks[0]
	n := copy(part, chunk[b.at:])
	b.at += n
	b.unread -= int64(n)
	if b.at == len(chunk) {
		u.dropChunk(chunk)
		b.chunks = b.chunks[1:]
		b.at = 0
	}
	return n, nil
}

// dropChunk drops a chunk. The caller holds the mutex.
func (u *Upload) dropChunk(chunk []byte) {
	u.site.bodies.Acquire(u.body.sender, -int64(cap(chunk)), 0)
	if cap(chunk) == chunkSize {
		freeChunks.Put(chunk[:0]) //nolint:staticcheck // its header is small beside the chunk
	}
}
