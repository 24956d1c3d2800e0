package lease

import (
	"math"
	"sync/atomic"
	"time"
)

// addReturn lets the first batch after the time at give units back. It starts Maintain, also if there
// are no leases any more.
func addReturn(t *Set, r Return, at int64) {
	if r.Units.N <= 0 {
		return
	}
	t.mu.Lock()
	if len(t.returns) < t.most {
		t.returns = append(t.returns, r)
		t.due(at)
	}
	t.mu.Unlock()
	Start(t)
}

// atOnce is for units that the next batch gives back.
const atOnce = 0

// end gives back units that have reached their end, so that the row has them again. They wait a little for
// the units of other rows: a statement for a few of them would be as expensive as the decisions of its
// batch.
func end(t *Set, l *Lease, u Units, now int64) {
	addReturn(t, Return{l.row, l.Limit, u}, now+gathering(t, l.Limit))
	l.Free += u.N
}

// giveBack has the next batch give back what a lease holds. The lease stays, because it knows what the row loses. The
// caller holds the shard's mutex.
func giveBack(t *Set, s *Shard, l *Lease) {
	fold(s, l)
	addReturn(t, Return{l.row, l.Limit, l.First}, atOnce)
	addReturn(t, Return{l.row, l.Limit, l.Then}, atOnce)
	l.Free += l.First.N + l.Then.N
	l.First = Units{}
	l.Then = Units{}
}

// remove ends a lease. back is whether its units are given back. The caller holds the shard's
// mutex.
func remove(t *Set, s *Shard, l *Lease, back bool) {
	if back {
		giveBack(t, s, l)
	}
	fold(s, l)
	l.First = Units{}
	l.Then = Units{}
	delete(s.Rows, l.row)
	atomic.AddInt64(&t.count, -1)
}

// Drop ends the lease of a row. back is whether its units are given back: after a reset of the row
// they are void.
func Drop(t *Set, row RowID, back bool) {
	s := shardOf(t, row.Key)
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if l := s.Rows[row]; l != nil {
		l.void = !back
		remove(t, s, l, back)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, r := range t.returns {
		if r.Row == row {
			if !back {
				continue
			}
			t.dueAt = atOnce
		}
		t.returns[n] = r
		n++
	}
	t.returns = t.returns[:n]
}

// Sweep ends the units that have reached their end, and the leases that hold nothing and are not
// used.
func Sweep(t *Set) {
	for _, s := range t.Shards {
		s.Mu.Lock()
		now := Now(t)
		for _, l := range s.Rows {
			// Else Spare would be lost.
			if l.First.N > 0 && (now >= l.First.Ends || l.Then.N > 0 && now >= l.Then.Ends) {
				settle(t, s, l, now)
				spare(l, now)
			}
			if l.First.N == 0 && now-l.since > Horizon(t, l.Limit) &&
				(l.Used == 0 || now-l.since > 3*Horizon(t, l.Limit)) {
				remove(t, s, l, true)
			}
		}
		s.Mu.Unlock()
	}
}

// End ends all leases, and lets none begin any more.
func End(t *Set) {
	for _, s := range t.Shards {
		s.Mu.Lock()
		s.ended = true
		for _, l := range s.Rows {
			remove(t, s, l, true)
		}
		s.Mu.Unlock()
	}
	t.mu.Lock()
	t.dueAt = atOnce
	t.mu.Unlock()
}

// Void ends all leases and gives nothing back, for rows that may lack what was charged.
func Void(t *Set) {
	for _, s := range t.Shards {
		s.Mu.Lock()
		for _, l := range s.Rows {
			l.void = true
			remove(t, s, l, false)
		}
		s.Mu.Unlock()
	}
	t.mu.Lock()
	t.returns = nil
	t.dueAt = math.MaxInt64
	t.mu.Unlock()
}

// Start runs Options.Maintain in a goroutine, unless it runs.
func Start(t *Set) {
	if t.maintain != nil && atomic.CompareAndSwapInt32(&t.maintaining, 0, 1) {
		go t.maintain()
	}
}

// Maintain is the loop of Options.Maintain: until there are no leases, it runs send if there is
// something to charge or to give back, and Sweep now and then. Units that wait for a batch
// are sent by send if no other batch comes within a sixteenth of a horizon. live reports
// whether to go on.
func Maintain(t *Set, live func() bool, send func()) {
	swept := Now(t)
	for live() {
		shortest := atomic.LoadInt64(&t.shortestHorizon)
		time.Sleep(maintainInterval(shortest))
		if now := Now(t); now-swept >= shortest/8 {
			swept = now
			Sweep(t)
		}
		if left := waiting(t); left > 0 {
			for more := true; more && live(); { // as long as there is progress
				before := left
				send()
				left = waiting(t)
				more = left > 0 && left < before
			}
			continue
		}
		if Any(t) {
			continue
		}
		atomic.StoreInt64(&t.shortestHorizon, t.horizon)
		atomic.StoreInt32(&t.maintaining, 0)
		if !Any(t) || !atomic.CompareAndSwapInt32(&t.maintaining, 0, 1) {
			return
		}
	}
	atomic.StoreInt32(&t.maintaining, 0)
}

// maintainInterval is the time between two rounds of Maintain, for a horizon in microseconds.
func maintainInterval(horizon int64) time.Duration {
	d := time.Duration(horizon) * time.Microsecond / 16
	if d > 25*time.Millisecond {
		return 25 * time.Millisecond
	}
	if d < time.Millisecond {
		return time.Millisecond
	}
	return d
}
