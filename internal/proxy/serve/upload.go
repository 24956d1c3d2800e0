package serve

import (
	"bytes"
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
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/usage"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
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
	sender string // the sender that has a share of Site.MaxBodies
	length int64  // the length of the body, or -1 before it was read
	// optional reports that only shadow rules need the body: the request passes even if it cannot be read.
	optional bool

	mu     sync.Mutex // guards the fields below once the upstream reads: it may do so after the request
	extra  []byte     // read after chunks, and not kept there
	chunks [][]byte   // what the upstream has not read; Site.bodies counts their capacities
	at     int        // how much of the first chunk the upstream has read
	left   int64      // the length of what the upstream has not read
}

// freeChunks has chunks of chunkSize. Without it, the memory of bodies would grow by half until it is
// collected.
var freeChunks = sync.Pool{New: func() any { return make([]byte, 0, chunkSize) }}

// parsing bounds how many long bodies are parsed at once, because parsing takes several times their memory.
// More of them than processors would not be parsed faster.
var parsing = make(chan bool, runtime.GOMAXPROCS(0))

// newUpload returns the Upload of a request, or nil if its body is not read. units are those of its policy.
func newUpload(q *Request, units tokenUnits) *Upload {
	v := &q.Verdict
	enforced := q.Limits.Tokens || units.tokens
	ofShadow := q.HTTP.ContentLength >= 0 && units.shadowMoney
	if q.HTTP.Method != http.MethodPost || !enforced && !ofShadow {
		return nil
	}
	u := &Upload{site: q.Site, length: -1, sender: clientOf(q), optional: !enforced}
	if q.Asked && v.KeyID != 0 {
		u.sender = "key " + strconv.FormatInt(v.KeyID, 10)
	} else if q.Asked && v.User != "" {
		u.sender = "user " + v.User
	}
	return u
}

// uploadStatuses has the statuses of the reasons for which ReadUpload refuses a request.
var uploadStatuses = map[policy.Reason]int{
	policy.NoPrice:       http.StatusBadRequest,
	policy.AmbiguousBody: http.StatusBadRequest, policy.Background: http.StatusBadRequest,
	policy.SlowBody: http.StatusRequestTimeout, policy.LongBody: http.StatusRequestEntityTooLarge,
	policy.ManyBodies: http.StatusServiceUnavailable,
}

// ReadUpload reads the Upload of a request and reports, as Begin does, whether the store has to decide the
// request. Before that, it refuses the request if a limit is known to be used up. The time for reading counts
// neither for the decision nor in the history.
func ReadUpload(q *Request) (waits bool) {
	if refusedFromMemory(q) {
		return false
	}
	u := q.Upload
	began := time.Now()
	reason := receive(u, q)
	if reason == policy.NotRefused {
		reason = u.prepare(q)
	}
	if reason != policy.NotRefused && u.optional {
		u.passOn(q)
		reason = policy.NotRefused
	}
	took := time.Since(began)
	q.Began = q.Began.Add(took)
	q.Arrived = q.Arrived.Add(took)
	if reason == policy.NotRefused {
		return true
	}
	u.release()
	q.Outcome = refusal(uploadStatuses[reason], reason)
	if reason == policy.ManyBodies {
		q.Outcome.Wait = overloadedWait
	}
	return false
}

// refusedFromMemory reports whether a limit of a request is known to be used up. If so, it sets the
// decisions. The body is not read yet, so limits of tokens are asked for one unit.
func refusedFromMemory(q *Request) bool {
	inPostgres, ok := q.Site.Store.(*store.Store)
	if !ok {
		return false
	}
	Fill([]*Request{q})
	if q.Decisions = inPostgres.RefuseRemembered(q.Hits); q.Decisions == nil {
		q.Hits = q.Hits[:0]
		q.waited = false
	}
	return q.waited
}

// receive reads a body into an Upload, and returns the reason to refuse the request.
func receive(u *Upload, q *Request) policy.Reason {
	r := q.HTTP
	for _, encoding := range policy.HeaderValues(r.Header, "Content-Encoding") {
		if encoding != "" && !strings.EqualFold(encoding, "identity") {
			return policy.AmbiguousBody
		}
	}
	bound := u.site.MaxBody
	if r.ContentLength > bound {
		return policy.LongBody
	}
	if r.ContentLength >= 0 {
		bound = r.ContentLength
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
	reason := u.fill(r.Body, bound, &late)
	if !timer.Stop() {
		return policy.SlowBody
	}
	return reason
}

// fill reads a body of at most bound bytes until its end, or until late is 1.
func (u *Upload) fill(body io.Reader, bound int64, late *int32) policy.Reason {
	next := make([]byte, 1) // read before there is a chunk for it
	length := int64(0)
	for atomic.LoadInt32(late) == 0 {
		n := 0
		var err error
		last := len(u.chunks) - 1
		if last >= 0 && len(u.chunks[last]) < cap(u.chunks[last]) {
			chunk := u.chunks[last]
			n, err = body.Read(chunk[len(chunk):cap(chunk)])
			u.chunks[last] = chunk[:len(chunk)+n]
		} else if n, err = body.Read(next); n > 0 {
			if length >= bound {
				u.extra = next
				return policy.LongBody
			}
			size := bound - length
			if last < 0 && size > firstChunk {
				size = firstChunk
			}
			if !u.grow(size) {
				u.extra = next
				return policy.ManyBodies
			}
			u.chunks[last+1] = append(u.chunks[last+1], next[0])
		}
		length += int64(n)
		if errors.Is(err, io.EOF) {
			u.length = length
			return policy.NotRefused
		}
		if err != nil {
			var tooLong *http.MaxBytesError // by an earlier handler
			if errors.As(err, &tooLong) {
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
	most := u.site.MaxBodies
	if !u.site.bodies.Hold(u.sender, size, most/settings.BodyShares, most) {
		return false
	}
	if size == chunkSize {
		u.chunks = append(u.chunks, freeChunks.Get().([]byte))
	} else {
		u.chunks = append(u.chunks, make([]byte, 0, size))
	}
	return true
}

// prepare reads what the body asks for, and makes the Upload the body of the request. It returns the reason
// to refuse the request.
func (u *Upload) prepare(q *Request) policy.Reason {
	path := q.Facts.Path
	if !q.Asked {
		path = NormalizePath(q.HTTP.URL.EscapedPath())
	}
	var text []byte
	if len(u.chunks) == 1 {
		text = u.chunks[0]
	} else if len(u.chunks) > 1 {
		if u.length > shortBody {
			parsing <- true
			defer func() { <-parsing }()
		}
		text = bytes.Join(u.chunks, nil)
	}
	prompt, err := usage.ReadPrompt(path, text)
	switch {
	case err != nil:
		return policy.AmbiguousBody
	case prompt.Background:
		return policy.Background
	}
	u.Prompt = prompt
	if q.Asked {
		q.price = q.Site.Policy.Live.PriceOf(prompt.Model)
	}
	if q.price == nil && tokenUnitsOf(q.Verdict.Marks).money {
		return policy.NoPrice
	}
	u.left = u.length
	var body io.ReadCloser = u
	q.HTTP.Body = body
	return policy.NotRefused
}

// passOn makes what was read of a body, and the rest of it, the body of the request.
func (u *Upload) passOn(q *Request) {
	rest := q.HTTP.Body
	u.left = 0
	for _, chunk := range u.chunks {
		u.left += int64(len(chunk))
	}
	var own io.Reader = u
	q.HTTP.Body = io.NopCloser(io.MultiReader(own, bytes.NewReader(u.extra), rest)) // the server closes rest
	u.length = q.HTTP.ContentLength
}

// Read implements io.Reader.
func (u *Upload) Read(part []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.left == 0 {
		return 0, io.EOF
	}
	if len(u.chunks) == 0 {
		return 0, http.ErrBodyReadAfterClose
	}
	chunk := u.chunks[0]
	n := copy(part, chunk[u.at:])
	u.at += n
	u.left -= int64(n)
	if u.at == len(chunk) {
		u.free(chunk)
		u.chunks = u.chunks[1:]
		u.at = 0
	}
	return n, nil
}

// Close implements io.Closer.
func (u *Upload) Close() error {
	u.release()
	return nil
}

// release drops what the upstream has not read.
func (u *Upload) release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, chunk := range u.chunks {
		u.free(chunk)
	}
	u.chunks = nil
}

// free drops a chunk. The caller holds the mutex.
func (u *Upload) free(chunk []byte) {
	u.site.bodies.Hold(u.sender, -int64(cap(chunk)), 0, 0)
	if cap(chunk) == chunkSize {
		freeChunks.Put(chunk[:0]) //nolint:staticcheck // its header is small beside the chunk
	}
}

// chargeOf returns what a hit on a limit of tokens is charged before the response, at most quota. Before the
// body is read, it returns 1.
func chargeOf(q *Request, how *option.Settle, quota int64) int64 {
	if q.Upload != nil && q.Upload.length < 0 && !q.Upload.optional {
		return 1
	}
	input := option.InputOf(lengthOf(q))
	output := outputOf(q, how)
	money := int64(0)
	if how.Unit == option.Money && q.price != nil {
		money = q.price.Estimate(input, output)
	}
	return how.Charge(input, output, money, quota)
}

// outputOf returns the output that a request may get: the maximum that it names, or else that of a limit, and
// at most the largest one of its model for each answer.
func outputOf(q *Request, how *option.Settle) int64 {
	output := int64(0)
	if q.Upload != nil {
		output = q.Upload.Prompt.Output
	}
	if output == 0 {
		output = how.Output
	}
	if p := q.price; p != nil && p.MaxOutput > 0 {
		most := p.MaxOutput
		if n := q.Upload.Prompt.Answers; n > 1 && most <= ratelimit.MaxEvents/n {
			most *= n
		}
		if output > most {
			output = most
		}
	}
	return output
}

// lengthOf returns the length of a request's body, which is negative if it is unknown.
func lengthOf(q *Request) int64 {
	if q.Upload != nil {
		return q.Upload.length
	}
	return q.HTTP.ContentLength
}
