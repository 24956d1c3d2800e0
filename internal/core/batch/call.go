package batch

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Call is a Take or Reset of one request, for which a caller waits. A caller can reuse its Call for another
// request.
//
// The caller owns a Call until Send and after Wait; in between the Queue owns it. A call that was canceled by
// a context may stay with its Queue and must not be reused; see Enter.
type Call struct {
	Hits      []ratelimit.Hit
	Reset     bool                 // restore the full quotas of the keys of Hits, instead of charging
	Decisions []ratelimit.Decision // one for each hit, unless Err is set
	Err       error                // the reason why Decisions are missing
	Owner     any                  // any value of the caller; the Queue ignores it
	Arrived   time.Time            // the time at which the call was sent

	// Rows holds the remembered row of each hit, or nil for a hit without one. It may be shorter than Hits.
	// The store sets it before it decides the call.
	Rows []*lease.Cached

	// HasIndependent reports whether any of Hits is Independent; see Split. Prepare and Decider.Fill set it.
	HasIndependent bool

	cancelable bool  // Enter sets it if its context can end
	finished   int32 // 1 once Finish or Enter has ended the wait of a cancelable call
	ended      error // the error of Enter if its context has ended the wait
	done       chan struct{}

	part      *callPart // not nil in a part of another call
	openParts int32     // the number of unfinished parts of this call; atomic
	failure   error     // the error of a part; it becomes Err unless the call is canceled
}

// DigestPrefix begins each stored key that is a digest; see ratelimit.DigestKey.
const DigestPrefix = "sha256:"

// NewCall returns a Call without hits.
func NewCall() *Call { return &Call{done: make(chan struct{}, 1)} }

// Prepare readies a call for another request. It copies hits, because a canceled call outlives its
// caller's slice.
func (c *Call) Prepare(hits []ratelimit.Hit, reset bool) {
	c.Hits = append(c.Hits[:0], hits...)
	c.Rows = c.Rows[:0]
	c.Decisions = c.Decisions[:0]
	c.Err = nil
	c.Reset = reset
	c.HasIndependent = false
	if !reset {
		for i := range hits {
			if hits[i].Independent {
				c.HasIndependent = true
				break
			}
		}
	}
	c.cancelable = false
	c.finished = 0
}

// callPart links a part to the call from which Split made it.
type callPart struct {
	whole   *Call
	indexes []int // the indexes of the hits in whole.Hits
}

// Split replaces each call with hits that are Independent by its parts: one call for each Independent hit,
// and one call for all other hits. Finish finishes the whole call with its last part. Several goroutines may
// finish parts of one call, because each part writes its own decisions, and only the part of the other hits
// can fail the call.
func Split(calls []*Call) []*Call {
	var split []*Call
	for _, c := range calls {
		if c.HasIndependent {
			split = append(split, splitCall(c)...)
		} else {
			split = append(split, c)
		}
	}
	return split
}

// splitCall returns the parts of a call.
func splitCall(c *Call) []*Call {
	var parts []*Call
	var together *Call
	for i := range c.Hits {
		h := &c.Hits[i]
		if !h.Independent && together != nil {
			together.Hits = append(together.Hits, *h)
			together.part.indexes = append(together.part.indexes, i)
			continue
		}
		p := NewCall()
		p.Hits = append(p.Hits, *h)
		p.Arrived = c.Arrived
		p.part = &callPart{whole: c, indexes: []int{i}}
		if !h.Independent {
			together = p
		}
		parts = append(parts, p)
	}
	c.openParts = int32(len(parts))
	c.failure = nil
	c.Decisions = append(c.Decisions[:0], make([]ratelimit.Decision, len(c.Hits))...)
	return parts
}

// finishPart copies the decisions or the error of a part into the whole call. It returns the whole call if
// this was its last part, and nil otherwise. A failed part that is Independent does not fail the whole call.
func finishPart(c *Call) *Call {
	whole := c.part.whole
	for i, index := range c.part.indexes {
		switch {
		case c.Err == nil:
			whole.Decisions[index] = c.Decisions[i]
		case c.Hits[0].Independent:
			whole.Decisions[index] = ratelimit.Decision{Allowed: true, Quota: c.Hits[i].Limit.Capacity(),
				Source: ratelimit.Undecided}
		default:
			whole.failure = c.Err
		}
	}
	if atomic.AddInt32(&whole.openParts, -1) > 0 {
		return nil
	}
	return whole
}

// Finish ends the wait for calls. Calls without an Err of their own get err. A batch must finish each of its
// calls exactly once. Finish sets the elements of calls to nil, because the callers own their calls again.
func Finish(q *Queue, calls []*Call, err error) {
	n := 0
	for i, c := range calls {
		calls[i] = nil
		failure := err
		if c.part != nil {
			if c.Err == nil {
				c.Err = err
			}
			if c = finishPart(c); c == nil {
				continue
			}
			failure = c.failure
		}
		if c.cancelable && !atomic.CompareAndSwapInt32(&c.finished, 0, 1) {
			continue
		}
		if c.Err == nil {
			c.Err = failure
		}
		calls[n] = c
		n++
	}
	if n > 0 {
		callEach(q.decider.Deliver, calls[:n])
	}
	for i := 0; i < n; i++ {
		c := calls[i]
		calls[i] = nil
		c.done <- struct{}{}
	}
}

// callEach calls f with all calls, and reports whether f returned. If f panics, callEach retries it with one
// call at a time, and sets Err of the calls with which f panics again.
func callEach(f func(calls []*Call), calls []*Call) bool {
	if Try(func() error { f(calls); return nil }) == nil {
		return true
	}
	for i, c := range calls {
		one := calls[i : i+1]
		if err := Try(func() error { f(one); return nil }); err != nil {
			c.Err = err
		}
	}
	return false
}

// Try runs f, and returns its error, or an error if f panics.
func Try(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("ratelimit: panic: %v", p)
		}
	}()
	return f()
}

// PanicError runs f, and returns an error if f panics.
func PanicError(f func()) error { return Try(func() error { f(); return nil }) }

// Bill has the real cost of a request. Its settlement on limits that reserve counts once. Its JSON is the
// request's row in the ledger.
type Bill struct {
	Day   int64  `json:"day"`     // the day of the reservation in UTC, in days since 1970
	ID    string `json:"id"`      // see BillID; "" without limits that reserve
	User  string `json:"user_id"` // the name by which it counts; "" for an unknown one
	KeyID int64  `json:"key_id"`  // of the API key; 0 without one
	// Ancestors are the users above User, the nearest first, by the names by which they count.
	Ancestors []string `json:"ancestors"`
	Tier      string   `json:"tier,omitempty"`     // of service; "" for standard
	Answered  string   `json:"answered,omitempty"` // the model that answered; "" for that of Lines[0]
	Lines     []Line   `json:"lines"`              // one for each model, and first that of the request
	Charges   []Charge `json:"charges"`
}

// BillID returns a UUID of version 7 that no other request has. at is the time of the request's prices, in
// microseconds since the Unix epoch: the UUID has its milliseconds, and what is left in 4096ths of one.
func BillID(at int64) string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	stamp := uint64(at/1000)<<16 | 7<<12 | uint64(at%1000*4096/1000)
	for i := range id[:8] {
		id[i] = byte(stamp >> uint(56-8*i))
	}
	id[8] = id[8]&0x3f | 0x80
	text := hex.EncodeToString(id[:])
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}

// PricedAt returns the time in a UUID of BillID, or 0 if id is another one.
func PricedAt(id string) int64 {
	const version = 14
	if len(id) <= version || id[version] != '7' {
		return 0
	}
	text := id[:8] + id[9:13] + id[15:18]
	stamp, err := strconv.ParseInt(text, 16, 64)
	if err != nil {
		return 0
	}
	return stamp>>12*1000 + (stamp&0xfff*1000+4095)/4096
}

// Line has the cost of a model.
type Line struct {
	Model string `json:"model,omitempty"` // "" for an unknown one
	// The row of prices: its model, or "" if that is Model, and its time, or "" if it always holds.
	Price      string `json:"price,omitempty"`
	PriceValid string `json:"price_valid,omitempty"`

	// The parts, see option.Parts. The estimates are in Input, CacheWrite and Output.
	Input           int64 `json:"input"`
	CacheRead       int64 `json:"cache_read"`
	CacheWrite      int64 `json:"cache_write"`
	CacheWrite1h    int64 `json:"cache_write_1h,omitempty"`
	Output          int64 `json:"output"`
	AudioInput      int64 `json:"audio_input,omitempty"`
	AudioCacheRead  int64 `json:"audio_cache_read,omitempty"`
	AudioOutput     int64 `json:"audio_output,omitempty"`
	ImageInput      int64 `json:"image_input,omitempty"`
	ImageOutput     int64 `json:"image_output,omitempty"`
	Search          int64 `json:"search,omitempty"`
	EstimatedInput  int64 `json:"estimated_input,omitempty"`
	EstimatedOutput int64 `json:"estimated_output,omitempty"`

	Money json.Number `json:"money,omitempty"` // the exact cost in millionths; "" without a price
	// EstimatedMoney is what the estimates add to Money; "" for 0.
	EstimatedMoney json.Number `json:"estimated_money,omitempty"`
}

// Exact returns a number of units without a number of thousandths of a unit, from 0 to 999.
func Exact(units, rest int64) json.Number {
	if rest == 0 {
		return json.Number(strconv.FormatInt(units, 10))
	}
	return json.Number(strconv.FormatInt(units-1, 10) + "." + strconv.FormatInt(2000-rest, 10)[1:])
}

// Charge has the real cost of a request on one limit.
type Charge struct {
	Limit   *ratelimit.Limit `json:"-"`
	Key     string           `json:"key"` // the stored key
	Subject string           `json:"-"`   // Hit.Subject
	Unit    string           `json:"unit"`
	Units   int64            `json:"-"` // for money rounded up
	Rest    int64            `json:"-"` // the billionths by which Units is too much
	Cost    int64            `json:"-"` // what the hit was charged, or may hold
	Hold    *ratelimit.Hold  `json:"-"` // the Hold of the hit, which need not hold anything
	Notice  *Notice          `json:"-"` // nil makes none

	// The Decision on a limit that does not reserve: the charge of Cost is corrected to Units.
	DecidedAt int64            `json:"-"`
	Reset     int64            `json:"-"` // in microseconds
	Source    ratelimit.Source `json:"-"`

	// The ledger sets the other fields: the exact cost, where the row is, and the units that Hold holds.
	Exact   json.Number `json:"units"`
	Prefix  string      `json:"prefix"`
	Durable bool        `json:"durable"`
	Held    int64       `json:"-"`
}

// Notice describes a counter that may have reached one of the percentages of its quota that make a notice.
type Notice struct {
	Limit    *ratelimit.Limit
	Key      string // the stored key
	Unit     string
	Quota    int64
	Percents []int64
}
