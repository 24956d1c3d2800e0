package host

import "sync"

// Bodies counts the bytes of requests that the handlers of a process hold. The zero value is ready for use.
type Bodies struct {
	// Kept has bodies for further attempts to serve a request, by the Done of its client: see serve.Upload.
	Kept sync.Map

	mu       sync.Mutex // guards the fields below
	total    int64
	bySender map[string]int64
}

// The senders of a process may have maxBodies bodies of the greatest length together, and each senderBodies.
const (
	maxBodies    = 32
	senderBodies = 2
)

// Acquire counts n more bytes of a sender and returns true, unless the sender or all senders together would
// then have too much, where longest is the greatest length of a body. A negative n releases bytes.
func (b *Bodies) Acquire(sender string, n, longest int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.bySender[sender] + n
	if n > 0 && (own > senderBodies*longest || b.total+n > maxBodies*longest) {
		return false
	}
	b.total += n
	if own <= 0 {
		delete(b.bySender, sender)
		return true
	}
	if b.bySender == nil {
		b.bySender = make(map[string]int64)
	}
	b.bySender[sender] = own
	return true
}
