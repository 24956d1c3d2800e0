package registry

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// pauseSQL reads the pause: how long it lasts in microseconds, and which role made it.
	pauseSQL = `SELECT greatest(1, (extract(epoch FROM until - clock_timestamp()) * 1000000)::bigint)::text || ' by ' || paused_by || coalesce(': ' || reason, '')
FROM rate_limit_pause WHERE until > clock_timestamp()`

	// maxPause is the longest pause that is believed, in microseconds: a year.
	maxPause = 365 * 24 * 3600 * 1000000
	// remindInterval is the time between two notices of a pause.
	remindInterval = time.Minute
)

// pause is the pause of all limits, as the process obeys it.
type pause struct {
	paused int32             // 1 while limits are paused; atomic, set with the mutex
	set    func(paused bool) // is called with each change

	// Of the goroutine of the registry.
	text     string // until when limits are paused, and by which role, for people
	told     bool   // Notice was told that limits are paused
	reminded time.Time

	mu    sync.Mutex // guards all that follows
	ended bool       // the pause stays as it is
	timer *time.Timer
}

// Paused reports whether the limits of the database are paused. Store.Take does not ask: bans are counted in a pause as
// well. Callers that enforce limits let requests pass.
func (r *Registry) Paused() bool { return atomic.LoadInt32(&r.pause.paused) != 0 }

// lasts begins a pause that ends after so long, changes the time of the one that is under way, or
// ends it with 0. A pause ends at its time whether the database answers or not.
func (p *pause) lasts(left time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	if left <= 0 {
		p.change(0)
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(left, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.timer == timer && !p.ended {
			p.timer = nil
			p.change(0)
		}
	})
	p.timer = timer
	p.change(1)
}

// change sets whether limits are paused. The caller holds the mutex.
func (p *pause) change(paused int32) {
	if atomic.SwapInt32(&p.paused, paused) != paused {
		p.set(paused != 0)
	}
}

// end leaves the pause as it is.
func (p *pause) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	if p.timer != nil {
		p.timer.Stop()
	}
}

// readPause reads the pause. After a refusal of the server a pause lasts
// until its time.
func (r *Registry) readPause(read *pgdb.Statement, now time.Time) {
	r.fail("read", read.Err)
	if read.Err != nil {
		r.readAt = retryAt(now, &r.readIn)
		return
	}
	r.readIn = 0
	text := ""
	if read.Rows == 1 && len(read.Result) > 4 {
		text = string(read.Result[4:])
	}
	left := int64(0)
	if text != "" {
		fields := strings.SplitN(text, " ", 2)
		left, _ = strconv.ParseInt(fields[0], 10, 64) // the statement gives a number
		if left > maxPause {
			left = maxPause
		}
		r.pause.text = "until " + now.Add(time.Duration(left)*time.Microsecond).UTC().Format("2006-01-02 15:04:05Z") + " " + fields[len(fields)-1]
	}
	r.pause.lasts(time.Duration(left) * time.Microsecond)
}

// notify tells of a pause.
func (r *Registry) notify(now time.Time) {
	p := &r.pause
	paused := r.Paused()
	if paused == p.told && (!paused || now.Sub(p.reminded) < remindInterval) {
		return
	}
	p.told = paused
	p.reminded = now
	text := "limits apply again"
	if paused {
		text = "limits are paused " + p.text + ". Bans and block rules hold. To end it: caddy pg-ratelimit resume"
	}
	r.tell(text)
}
