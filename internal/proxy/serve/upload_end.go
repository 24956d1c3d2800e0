package serve

import (
	"context"
	"sync/atomic"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// clientIn returns the context of a request before the Flights of all its handlers, which end with an attempt
// to serve it. In Traefik, clientIn also finds the Upload of an earlier handler.
func clientIn(q *Request) context.Context {
	client := q.HTTP.Context()
	for client.Done() == client.Done() { //nolint:staticcheck // see isMirrored
		found := client.Value(flightKey)
		if found == nil {
			break
		}
		outer := found.(*Flight)
		client = outer.parent
		// In Caddy, q.HTTP.Body is that Upload, unless a handler in between has replaced it.
		if q.Writer != nil && q.Earlier == nil && outer.upload != nil && outer.upload.intact() {
			q.Earlier = outer.upload
		}
	}
	return client
}

// isMirrored reports whether a context is of a mirrored request in Traefik, which never ends, and has another
// channel each time. It has a body of its own.
func isMirrored(ctx context.Context) bool {
	return ctx.Done() != ctx.Done() //nolint:staticcheck // see above
}

// intact reports whether an Upload holds the whole body.
func (u *Upload) intact() bool {
	u.body.mu.Lock()
	defer u.body.mu.Unlock()
	return atomic.LoadInt32(&u.body.startedReading) == 0 && u.body.unread == u.length
}

// takeOver shares the body of an earlier Upload of a request: that of another handler, or if it is not nil
// the one that an attempt to serve the request has kept. takeOver reports whether that body can be shared.
func (u *Upload) takeOver(earlier *Upload, kept any) bool {
	if kept != nil {
		earlier = kept.(*Upload)
		if atomic.LoadInt32(&earlier.body.startedReading) != 0 {
			u.body.startedReading = 1
			return false // a handler may have made the body again: see receive
		}
	}
	u.length = earlier.length
	u.body = earlier.body
	u.settlePostponed()
	return true
}

// fault returns the reason to refuse a request for what takeOver has taken.
func (u *Upload) fault() policy.Reason {
	u.body.mu.Lock()
	defer u.body.mu.Unlock()
	switch {
	case atomic.LoadInt32(&u.body.startedReading) != 0 || len(u.body.chunks) == 0 && u.body.unread > 0:
		return policy.GoneBody
	case u.length > u.bound:
		return policy.LongBody
	case u.body.unread < u.length: // see passOn
		return policy.SlowBody
	}
	return policy.NoReason
}

// Close implements io.Closer. A body that nobody has read stays for another attempt: see endAttempt.
func (u *Upload) Close() error {
	u.body.mu.Lock()
	u.attemptOver = u.oneAttempt
	drops := atomic.LoadInt32(&u.body.startedReading) != 0 && len(u.body.chunks) > 0
	u.body.mu.Unlock()
	if drops {
		u.dropChunks()
	}
	return nil
}

// endAttempt ends an attempt to serve the request, for which Flight.End has found something to do. A body
// that nobody has read stays until the client's request ends, because another attempt may follow, or a route
// for errors. Without a length, it stays known that it was read.
func (u *Upload) endAttempt() {
	b := u.body
	b.mu.Lock()
	read := atomic.LoadInt32(&b.startedReading) != 0
	keeps := read && u.unsized || !read && len(b.chunks) > 0
	waits := keeps || !read && len(b.postponed) > 0
	b.mu.Unlock()
	done := u.client.Done()
	if !waits || done == nil || isMirrored(u.client) {
		u.endRequest()
		return
	}
	if read {
		u.dropChunks()
	}
	if keeps {
		u.site.bodies.Kept.Store(done, u)
	}
	context.AfterFunc(u.client, func() {
		u.site.bodies.Kept.Delete(done)
		u.endRequest()
	})
}

// endRequest drops what no upstream has read, and settles what was to be settled later.
func (u *Upload) endRequest() {
	u.dropChunks()
	u.settlePostponed()
}

// settlePostponed settles what was to be settled later.
func (u *Upload) settlePostponed() {
	u.body.mu.Lock()
	late := u.body.postponed
	u.body.postponed = nil
	u.body.mu.Unlock()
	for _, f := range late {
		f()
	}
}

// postpone makes endRequest settle a request without a response, and reports whether it does: nobody has read
// the body yet, but the handler that responds may pass it on.
func (u *Upload) postpone(s *Settling) bool {
	b := u.body
	b.mu.Lock()
	defer b.mu.Unlock()
	if atomic.LoadInt32(&b.startedReading) != 0 || u.length == 0 {
		return false
	}
	b.postponed = append(b.postponed, func() {
		if atomic.LoadInt32(&b.startedReading) != 0 {
			s.mu.Lock()
			s.status = clientLeft // the response is unknown here
			s.mu.Unlock()
		}
		s.settleSoon()
	})
	return true
}

// dropChunks drops what no upstream has read.
func (u *Upload) dropChunks() {
	u.body.mu.Lock()
	defer u.body.mu.Unlock()
	for _, chunk := range u.body.chunks {
		u.dropChunk(chunk)
	}
	u.body.chunks = nil
}
