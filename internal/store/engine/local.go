package engine

import (
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/chain"
	"github.com/pgratelimit/pg-ratelimit/internal/store/known"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// local decides while the database does not: this process has a share of each limit. It remembers the
// rows of the last decisions of the database, so that a row begins with the share of what was left. The
// database's next decision on a row replaces what was counted here.
type local struct {
	on   int32 // 1 once rows are remembered; atomic
	live int64 // how many proxies the registry has shown, this one included; atomic
	born time.Time

	mu       sync.Mutex // guards all that follows
	rows     map[lease.RowID]*localRow
	ahead    int64 // the server's clock less that of this process, in microseconds
	unpaid   []*localDebt
	charging int64 // units of settlements under way
	state    chain.Local
}

// localRow is a row as the database decided last, or what this process has made of its share since.
type localRow struct {
	id     lease.RowID
	row    algorithm.Row
	now    int64      // the server's time of the decision
	shared bool       // row is the share
	slots  int64      // that requests hold of the share, on a limit InFlight; atomic
	debt   *localDebt // the last one; nil is none
}

// localDebt is what a row has admitted on a durable limit, until the database knows it.
type localDebt struct {
	of            *localRow
	subject       string // bill finds the part by it, since the parts may not be known yet
	limit         *ratelimit.Limit
	charge        int64
	share         ratelimit.Limit // the share of limit, as of the last charge
	taken         int64           // what charge has taken of the share
	before, after algorithm.Row   // the share before the first charge, and after the last one
}

const (
	// maxLocal bounds the rows that are remembered, at about 300 bytes each.
	maxLocal = 50000
	// maxUnpaid bounds the charges that the database does not know. A row can have one for each outage.
	maxUnpaid = 10000
	// localLinger is how long the database must have decided everything before that counts as exact again.
	localLinger = 2 * time.Second
)

func newLocal() *local { return &local{born: time.Now(), live: 1, rows: map[lease.RowID]*localRow{}} }

// UseLocal makes the store remember the rows of its decisions, for TakeLocal.
func (s *Store) UseLocal() { atomic.StoreInt32(&s.engine.local.on, 1) }

// clock is this machine's time in microseconds. It never goes back.
func (k *local) clock() int64 { return k.born.Add(time.Since(k.born)).UnixMicro() }

// serverTime is the server's time in microseconds. The caller holds the mutex.
func (k *local) serverTime(s *Store) int64 {
	if s.engine.now != nil {
		return s.engine.now().UnixMicro()
	}
	return k.clock() + k.ahead
}

// remember remembers the rows of a plan as they are after its statements. It is one loop, with what most
// rows need inline, because the plugin is interpreted: see package batch.
func (k *local) remember(p *plan) {
	if atomic.LoadInt32(&k.on) == 0 {
		return
	}
	now := k.clock()
	k.mu.Lock()
	for _, e := range p.entries[:p.usedEntries] {
		if !e.answered || e.err != nil {
			continue
		}
		r := k.rows[e.id]
		if r == nil {
			r = k.add(e.id)
		}
		if late := r.now - e.view.Now; late > 0 && late < known.Trust {
			continue // several batches may be under way
		}
		r.row = e.view.Row
		r.now = e.view.Now
		r.shared = false
		k.ahead = e.view.Now - now
	}
	k.mu.Unlock()
}

// add adds a row. The caller holds the mutex.
func (k *local) add(id lease.RowID) *localRow {
	if len(k.rows) >= maxLocal {
		tries := 0
		for other, r := range k.rows { // from a random one on
			if tries++; r.debt == nil || tries > 16 {
				delete(k.rows, other)
				break
			}
		}
	}
	id.Key = strings.Clone(id.Key) // the key may be a part of a long request
	r := &localRow{id: id}
	k.rows[id] = r
	return r
}

// TakeLocal is Take without the database, at this process's share of each limit: with 0, the share is one
// of the proxies that the registry showed last. cause is why the database has made no decision. TakeLocal
// reports false if the hits cannot be decided.
func (s *Store) TakeLocal(cause error, share float64, hits []ratelimit.Hit, decisions []ratelimit.Decision) bool {
	if ratelimit.ValidateHits(hits, decisions) != nil {
		return false
	}
	k := s.engine.local
	parts := 1 / share
	if share == 0 {
		parts = float64(atomic.LoadInt64(&k.live))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.serverTime(s)
	limits := make([]ratelimit.Limit, len(hits))
	shared := make([]ratelimit.Hit, len(hits))
	taken := make([]*localRow, len(hits))
	before := make([]algorithm.Row, len(hits))
	rows := make([]*algorithm.Row, len(hits))
	nows := make([]int64, len(hits))
	for i := range hits {
		h := &hits[i]
		limits[i] = algorithm.ShareLimit(h.Limit, parts)
		shared[i] = *h
		shared[i].Limit = &limits[i]
		if most := limits[i].Capacity(); h.Cost > most && h.Cost <= h.Limit.Capacity() {
			shared[i].Cost = most // else it could never pass
		}
		id := lease.RowID{Durable: h.Limit.Durable, Prefix: h.Limit.Prefix, Key: h.StoredKey()}
		r := k.rows[id]
		if r == nil {
			r = k.add(id)
		}
		if !r.shared {
			r.shared = true
			algorithm.ShareRow(&r.row, parts)
			r.debt = nil // the next one is of this share
		}
		if h.Limit.Algorithm == ratelimit.InFlight {
			r.row.Slots = atomic.LoadInt64(&r.slots) + heldOf(s, id)
		}
		taken[i] = r
		before[i] = r.row
		rows[i] = &r.row
		nows[i] = now
	}
	all := algorithm.Decide(shared, rows, nows, decisions)
	k.count(parts, all)
	// A statement that was sent may have charged.
	owed := errors.Is(cause, ratelimit.ErrUnavailable) && !errors.Is(cause, errSent)
	for i := range hits {
		h := &hits[i]
		d := &decisions[i]
		charged := h.Cost > 0 && !h.Peek && d.Allowed && (all || h.Apart)
		switch {
		case charged && h.Limit.Algorithm == ratelimit.InFlight:
			taken[i].hold(h)
		case charged && h.Limit.Durable && owed:
			k.owe(taken[i], h, &shared[i], &before[i], now)
		}
		// What all proxies together have left, if the others have used as much as this one.
		used := int64(float64(limits[i].Capacity()-d.Remaining) * parts)
		d.Limit = h.Limit.Capacity()
		d.Remaining = algorithm.Remaining(d.Limit, d.Limit-used)
		d.Source = ratelimit.FromMemory
		d.DecidedAt = 0 // nothing is settled: the database does not know of the charge
		if rows[i].Blank() && taken[i].debt == nil {
			delete(k.rows, taken[i].id)
		}
	}
	return true
}

// count counts a decision at one of so many parts. The caller holds the mutex.
func (k *local) count(parts float64, admitted bool) {
	now := time.Now()
	if !k.state.On {
		k.state = chain.Local{On: true, Since: now}
	}
	k.state.Last = now
	k.state.Parts = parts
	if admitted {
		k.state.Admitted++
	} else {
		k.state.Refused++
	}
}

// hold gives a hit that was admitted its slots of the share.
func (r *localRow) hold(h *ratelimit.Hit) {
	cost := h.Cost
	atomic.AddInt64(&r.slots, cost)
	h.Slot.Hold(func() { atomic.AddInt64(&r.slots, -cost) })
}

// owe adds what a hit has used to what the database does not know. share is the same hit on the share, and before is
// the row before it. The caller holds the mutex.
func (k *local) owe(r *localRow, h, share *ratelimit.Hit, before *algorithm.Row, now int64) {
	d := r.debt
	switch {
	case d != nil && d.counts(now) == 0: // such as that of an earlier window
		d.charge = 0
		d.taken = 0
		d.before = *before
	case d == nil:
		if len(k.unpaid) >= maxUnpaid {
			k.state.Lost += h.Cost
			return
		}
		d = &localDebt{of: r, subject: strings.Clone(subjectOf(h)), before: *before} // the subject may be a part of a long request
		r.debt = d
		k.unpaid = append(k.unpaid, d)
	}
	d.limit = h.Limit
	d.charge += h.Cost
	d.share = *share.Limit
	d.taken += share.Cost
	d.after = r.row
}

// counts is how much of a debt still counts: in proportion, as much as the share has less for it. Nothing counts after the
// end of its window.
func (d *localDebt) counts(now int64) int64 {
	left := usedOf(&d.share, &d.after, now) - usedOf(&d.share, &d.before, now)
	switch {
	case left <= 0:
		return 0
	case left >= d.taken:
		return d.charge
	}
	return int64(math.Ceil(float64(d.charge) * float64(left) / float64(d.taken)))
}

// usedOf is how much of its limit a row has used.
func usedOf(l *ratelimit.Limit, r *algorithm.Row, now int64) int64 {
	free, _ := algorithm.Of(l).Look(l, r, now)
	return l.Capacity() - free
}

// Local is what TakeLocal has decided since the database does not, or what it had decided when the database did again.
func (s *Store) Local() chain.Local {
	k := s.engine.local
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state
}

// heldOf is how many slots of a row a store holds.
func heldOf(s *Store, row lease.RowID) int64 {
	n := int64(0)
	for _, one := range allStores(s) {
		n += one.engine.slots.CountOf(row)
	}
	return n
}
