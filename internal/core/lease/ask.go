package lease

import (
	"math"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Ask is a charge that is to be made for a lease: n hits of cost 1.
type Ask struct {
	Row   RowID
	Limit *ratelimit.Limit
	N     int64
	lease *Lease
}

// Return is units that are to be given back.
type Return struct {
	Row   RowID
	Limit *ratelimit.Limit
	Units Units
}

// patience is how long the answer to a charge is waited for, in microseconds. If it comes
// later, the lease gets the units of both charges.
const patience = 2000000

// want asks for a charge, unless that was asked for already. Charges of several leases are gathered, because a
// statement for one row costs as much as the decisions of its batch. A busy key does not wait: one that had its
// first hits faster than that, or has used up its units. The caller holds the shard's mutex.
func want(t *Set, l *Lease, now int64) {
	if now < l.asked || !l.known {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.wants) < t.most {
		l.asked = now + patience
		t.wants = append(t.wants, l.row)
		wait := gathering(t, l.Limit)
		if l.First.N == 0 && (l.size > 0 || now-l.since < wait) {
			wait = 0
		}
		t.due(now + wait)
	}
}

// mostGathering is the longest that charges and refunds wait for others, in microseconds.
const mostGathering = 100000

// gathering is how long a charge or a refund waits for others, in microseconds.
func gathering(t *Set, l *ratelimit.Limit) int64 {
	if wait := Horizon(t, l) / 8; wait < mostGathering {
		return wait
	}
	return mostGathering
}

// Due reports whether there is something to charge or to refund now.
func Due(t *Set) bool { return waiting(t) > 0 }

// waiting is how many charges and refunds may go with a batch now.
func waiting(t *Set) int {
	now := Now(t)
	t.mu.Lock()
	defer t.mu.Unlock()
	if now < t.dueAt {
		return 0
	}
	return len(t.wants) + len(t.returns)
}

// due lets charges and refunds go with a batch from a time on. The caller holds the mutex of the set.
func (t *Set) due(at int64) {
	if at < t.dueAt {
		t.dueAt = at
	}
}

// Work returns the charges and refunds that go with the next batch, and removes them from the set. all is for
// a batch with refunds or resets: it needs all refunds of leased units, so that they come before
// its own.
func Work(t *Set, all bool) ([]Ask, []Return) {
	now := Now(t)
	t.mu.Lock()
	if now < t.dueAt && !all {
		t.mu.Unlock()
		return nil, nil
	}
	wants := t.wants
	returns := t.returns
	t.wants = nil
	t.returns = nil
	t.dueAt = math.MaxInt64
	if len(wants) > batchWork {
		t.wants = wants[batchWork:]
		wants = wants[:batchWork]
		t.dueAt = now
	}
	if len(returns) > batchWork && !all {
		t.returns = returns[batchWork:]
		returns = returns[:batchWork]
		t.dueAt = now
	}
	t.mu.Unlock()
	var asks []Ask
	for _, row := range wants {
		s := shardOf(t, row.Key)
		s.Mu.Lock()
		if l := s.Rows[row]; l != nil {
			if n := size(t, s, l, now); n > 0 {
				asks = append(asks, Ask{row, l.Limit, n, l})
			}
			if l.idle && l.First.N == 0 {
				remove(t, s, l, true)
			} else {
				spare(l, now)
			}
		}
		s.Mu.Unlock()
	}
	return asks, returns
}

// longPatience is for how long a charge that failed is not tried again, in microseconds: a row that
// another transaction has locked would delay each batch.
const longPatience = 10000000

// Postpone delays the next charge for a lease after one that failed.
func Postpone(t *Set, row RowID) {
	s := shardOf(t, row.Key)
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if l := s.Rows[row]; l != nil {
		l.asked = Now(t) + longPatience
	}
}

// size is how much to charge for a lease: what its hits used in a horizon, at most four times
// as much as before and a few, and at most the share of what is left, less what is held. The
// caller holds the shard's mutex.
func size(t *Set, s *Shard, l *Lease, now int64) int64 {
	settle(t, s, l, now)
	horizon := Horizon(t, l.Limit)
	elapsed := now - l.since
	if elapsed < horizon/8+1 {
		elapsed = horizon/8 + 1
	}
	target := int64(float64(l.Used) * float64(horizon) / float64(elapsed))
	if l.idle = target < leastHits*l.perHit/2; l.idle {
		l.asked = now + horizon/4
		return 0
	}
	most := 4*l.size + 8
	held := l.First.N + l.Then.N
	if target > most {
		target = most
	}
	if most = share(l, l.Free+held); target > most {
		target = most
	}
	if target <= held {
		l.asked = now + horizon/4
		return 0
	}
	l.since = now
	l.Used = 0
	return target - held
}

// share is the most that this process may hold of what is left.
func share(l *Lease, left int64) int64 {
	if left <= l.lost {
		return 0
	}
	return int64(l.Limit.Lease * float64(left))
}

// lose learns from an answer what the row loses to all processes in a life of units. If no more is left, the row gives
// no units: they could be unused when others need them. The caller holds the shard's mutex.
func lose(t *Set, l *Lease, a *Answer) {
	life := MostLife(t, l.Limit)
	elapsed := a.Now - l.answered
	lost := l.Free - a.Free
	switch {
	case !l.known || elapsed < 0:
		return
	case elapsed < life:
		lost += int64(float64(l.lost) * float64(life-elapsed) / float64(life))
	default:
		lost = int64(float64(lost) * float64(life) / float64(elapsed))
	}
	if lost < 0 {
		lost = 0 // the window has turned, or units came back
	}
	l.lost = lost
}

// Answer is what the result of a statement says of a row.
type Answer struct {
	Row     RowID
	Limit   *ratelimit.Limit
	Free    int64 // what is left; below 0 if the quota is overdrawn
	Reset   time.Time
	Now     int64 // algorithm.ChargedAt of the server's time, in microseconds; answers may come in another order
	Refused bool  // a hit of a caller was refused

	// Of an entry with a charge for a lease.
	Ask    *Ask
	Leased Units // what it has got
}

// Update updates a lease with an answer. Of the units in it, the lease gets no more than the share of
// what was left. The others are given back.
func Update(t *Set, a *Answer) {
	s := shardOf(t, a.Row.Key)
	s.Mu.Lock()
	defer s.Mu.Unlock()
	l := s.Rows[a.Row]
	if l == nil || a.Ask != nil && a.Ask.lease != l || !l.Limit.Equal(a.Limit) {
		// The lease that asked for the charge has ended.
		if a.Ask != nil && !a.Ask.lease.void {
			addReturn(t, Return{a.Row, a.Limit, a.Leased}, atOnce)
		}
		return
	}
	now := Now(t)
	settle(t, s, l, now)
	if late := l.answered - a.Now; late <= 0 || late > patience { // else it is older than what is known
		lose(t, l, a)
		l.answered = a.Now
		l.Free = a.Free
		if !l.known || !a.Reset.Equal(l.Reset) {
			l.Reset = a.Reset
			l.ResetText = strconv.FormatInt(l.Reset.Add(time.Second-1).Unix(), 10)
		}
	}
	l.known = true
	if a.Refused {
		giveBack(t, s, l)
	}
	if a.Ask != nil {
		takeIn(t, l, a, now)
	}
	if l.First.N+l.Then.N <= l.Low {
		want(t, l, now)
	}
	spare(l, now)
}

// takeIn gives a lease the units that were charged for it. The caller holds the shard's
// mutex.
func takeIn(t *Set, l *Lease, a *Answer, now int64) {
	units := a.Leased
	held := l.First.N + l.Then.N
	most := share(l, a.Free+held+units.N) - held
	if most < 0 || now >= units.Ends {
		most = 0
	}
	if excess := units.N - most; excess > 0 {
		addReturn(t, Return{l.row, l.Limit, Units{N: excess, Ends: units.Ends, Claim: units.Claim}}, atOnce)
		units.N = most
		l.Free += excess
	}
	l.asked = 0
	if units.N == 0 {
		l.asked = now + Horizon(t, l.Limit)/4
		return
	}
	units.Since = now
	switch {
	case l.First.N == 0:
		l.First = units
	case l.Then.N == 0:
		l.Then = units
	default:
		end(t, l, l.First, now)
		l.First = l.Then
		l.Then = units
	}
	l.size = l.First.N + l.Then.N
	l.Low = l.size / 4
}
