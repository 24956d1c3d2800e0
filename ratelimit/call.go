package ratelimit

import "time"

// Call is one request that waits for its decisions. It serves one request at a
// time, and one after the other.
type Call struct {
	Hits      []Hit      // what it asks for
	Decisions []Decision // on the hits, one each, unless Err is set
	Err       error      // why there are none
	Owner     any        // whatever the caller needs to know the call by

	places      []place    // where each hit went in the batch
	holder      *holder    // of an internal call: for whom it gives back
	claims      []claim    // of an internal call that gives back; parallel to Hits
	reset       bool       // the hits' keys are to be forgotten
	gives       bool       // some quota is given back: a reset, or a negative cost
	unusual     bool       // some hit is not simply to be charged
	internal    bool       // nobody waits
	cancellable bool       // its caller may stop waiting
	deadline    time.Time  // of one that comes again
	attempts    int        // how often it has come again
	refusal     []Decision // that of one that comes again
	refused     time.Time  // when it was
	failed      error      // what the batch says; its caller may have stopped waiting
	settled     int32      // 1 once the wait of a cancellable one has ended
	done        chan struct{}
}

// NewCall returns a call for a Queue.
func NewCall() *Call { return &Call{done: make(chan struct{}, 1)} }

// place is a hit's place in a batch: the nth of an item's equal hits.
type place struct {
	item   *item
	nth    int64
	before *item // of a hit that gives back: the refund, before the look at what is left
}

// newCall returns a call for the hits, with their keys as they are stored. It
// owns its slices, so that a caller who stops waiting may reuse his.
func (p *Postgres) newCall(hits []Hit, reset bool) *Call {
	c := p.idle.Get().(*Call)
	c.Hits = append(c.Hits[:0], hits...)
	c.reset = reset
	c.cancellable = false
	c.settled = 0
	begin([]*Call{c})
	return c
}

// begin makes calls ready for a batch: their keys are as they are stored.
func begin(calls []*Call) {
	keys := make([]string, 0, 8)
	for _, c := range calls {
		c.Decisions = c.Decisions[:0]
		c.attempts = 0
		c.failed = nil
		c.gives = c.reset
		c.unusual = c.reset
		for i := range c.Hits {
			h := &c.Hits[i]
			if h.Cost != 1 || h.Secret || h.Peek {
				examine(c, h)
			} else {
				keys = append(keys, h.Key)
			}
		}
	}
	if !allPlain(keys) {
		for _, c := range calls {
			storeUsual(c)
		}
	}
}

// examine is what a hit needs that is not of the most frequent kind.
func examine(c *Call, h *Hit) {
	h.Key = h.storedKey()
	if h.Cost < 0 && !h.Peek {
		c.gives = true
	}
	if h.Peek || h.Cost < 1 || h.Cost > capacity(h.Limit) {
		c.unusual = true
	}
}

// storeUsual does for the keys of the other hits what examine does.
func storeUsual(c *Call) {
	for i := range c.Hits {
		h := &c.Hits[i]
		if h.Cost == 1 && !h.Secret && !h.Peek {
			h.Key = StoredKey(h.Key)
		}
	}
}
