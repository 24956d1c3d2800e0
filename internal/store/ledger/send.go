package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/store/process"
	"github.com/pgratelimit/pg-ratelimit/internal/store/statement"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// tickInterval is the time between two checks for a due renewal of the name.
	tickInterval = 250 * time.Millisecond
	// sendTimeout bounds a transaction, and lockWait its wait for the lock of a row.
	sendTimeout = 2 * time.Second
	lockWait    = 200 * time.Millisecond
	// maxBatch bounds the settlements of a transaction.
	maxBatch = 200
	// retryPause is the time after which a settlement is sent again that has failed by itself.
	retryPause = 2 * time.Second
	// gatherTime is the time for which a transaction waits for more settlements while more than fewRunning
	// requests hold units, since one of many settlements takes less time for each. In Traefik, serve may have
	// waited before (settleWithin, with an equal fewRunning), to save time of the interpreter.
	gatherTime = 10 * time.Millisecond
	fewRunning = 8
)

// item is a settlement that waits, or was sent without an answer, or without an ID a release.
type item struct {
	batch.Bill
	name     int64 // that which holds what the item ends, from when it is first sent
	alone    bool  // send it in a transaction of its own, because it has failed with others
	notUntil time.Time
}

// run sends what waits and renews the name, until the store is closed.
func (l *Ledger) run() {
	for l.Closing.Err() == nil {
		pause, cancel := context.WithTimeout(l.Closing, tickInterval)
		l.mu.Lock()
		l.wake = cancel // what is added from now on does not wait for the next tick
		l.mu.Unlock()
		l.Report(batch.PanicError(func() {
			if l.step(time.Now()) {
				cancel()
			}
		}))
		<-pause.Done()
		cancel()
		l.mu.Lock()
		n := len(l.waiting)
		gathers := n > 0 && n < maxBatch && !l.waiting[0].alone &&
			len(l.held) > fewRunning*len(l.waiting[0].Charges)
		l.mu.Unlock()
		if gathers {
			more, end := context.WithTimeout(l.Closing, gatherTime)
			<-more.Done()
			end()
		}
	}
}

// step renews the name, sends a transaction, and holds again what a new name does not hold. It reports
// whether more can be sent at once.
func (l *Ledger) step(now time.Time) bool {
	if l.Health.Unavailable() != nil {
		return false
	}
	l.mu.Lock()
	if l.uncertain && len(l.unknown) == 0 && now.Sub(l.beganAt) >= process.RenewInterval {
		l.uncertain = false
		l.Name.Expire()
	}
	l.mu.Unlock()
	l.Name.Renew(now)
	items := l.unknown
	if len(items) == 0 {
		items = l.take(now)
	}
	if len(items) > 0 && !l.send(items, now) {
		return false
	}
	l.reacquire()
	for _, one := range l.takeFormer() {
		l.Name.EndOne(one)
	}
	return len(items) > 0
}

// take removes the next items that are due: a number of them, or one that is sent alone.
func (l *Ledger) take(now time.Time) []*item {
	l.mu.Lock()
	defer l.mu.Unlock()
	var taken, left []*item
	ids := map[string]bool{} // a transaction has each settlement once
	name := l.Name.Last()
	for n, one := range l.waiting {
		switch {
		case len(taken) == maxBatch || len(taken) > 0 && taken[0].alone:
			left = append(left, l.waiting[n:]...)
			l.waiting = left
			return taken
		case now.Before(one.notUntil) || one.alone && len(taken) > 0 || ids[one.ID]:
			left = append(left, one)
			continue
		}
		taken = append(taken, one)
		ids[one.ID] = one.ID != ""
		one.name = name
		for k := range one.Charges {
			c := &one.Charges[k]
			c.Exact = json.Number(strconv.FormatInt(c.RealUnits, 10))
			if c.Excess != 0 {
				c.Exact = batch.Exact(c.RealUnits*1000 - c.Excess)
			}
			c.Durable = c.Limit.Durable
			c.Prefix = c.Limit.Prefix
			if c.Limit.CountedAs != "" { // as lease.RowOf does, whose call the interpreter would pay for
				c.Prefix = c.Limit.CountedAs
			}
			c.Held = 0
			// Holds of an earlier name end with it: see takeFormer.
			if h := l.held[c.Hold]; h != nil && h.name == name {
				c.Held = h.units
			}
		}
	}
	l.waiting = left
	return taken
}

// send sends items in one transaction, and reports whether it was answered.
func (l *Ledger) send(items []*item, now time.Time) bool {
	entries, statements := l.write(items)
	_, err := l.Run(l.Closing, sendTimeout, statements)
	if err != nil {
		l.unknown = l.withoutReleases(items, errors.Is(err, pgdb.ErrNotSent))
		return false
	}
	l.unknown = nil
	for _, s := range statements {
		if s.Err != nil && !errors.Is(s.Err, pgdb.ErrRolledBack) {
			l.retry(items, s, now)
			return true
		}
	}
	added := len(entries.Result) > emptyResult
	var refunded []lease.RowID
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.unsettled
	for _, one := range items {
		for k := range one.Charges {
			c := &one.Charges[k]
			// If the ledger has had all bills, this transaction has ended no hold.
			l.uncertain = l.uncertain || c.Held > 0 && !added
			delete(l.held, c.Hold)
			if c.RealUnits < c.Held {
				refunded = append(refunded, lease.RowID{Durable: c.Durable, Prefix: c.Prefix, Key: c.Key})
			}
			if c.Notice != nil && l.Notify != nil { // a release has none
				l.Notify(c.Notice)
			}
		}
		if one.ID != "" {
			l.unsettled--
		}
	}
	lease.ClearRefusals(l.Rows, refunded...)
	l.Settled(int64(before-l.unsettled), nil)
	return true
}

// retry queues the items of a failed transaction again, each to be sent alone.
func (l *Ledger) retry(items []*item, failed *pgdb.Statement, now time.Time) {
	if pg.IsMissingDay(failed.Code, failed.Err.Error()) && l.Upkeep != nil {
		for i, one := range items {
			if i == 0 || one.Day != items[i-1].Day {
				l.Report(l.Upkeep(one.Day))
			}
		}
	} else if len(items) == 1 {
		l.Report(failed.Err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range items {
		one.alone = true
		if len(items) == 1 {
			one.notUntil = now.Add(retryPause)
		}
	}
	l.waiting = append(l.waiting, items...)
}

// withoutReleases returns the items of a transaction without an answer, to send again. If it was sent, it
// drops the releases, which must not be repeated, and the name ends.
func (l *Ledger) withoutReleases(items []*item, unsent bool) []*item {
	if unsent {
		return items
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var left []*item
	for _, one := range items {
		if one.ID != "" {
			left = append(left, one)
			continue
		}
		delete(l.held, one.Charges[0].Hold)
		l.uncertain = true
	}
	return left
}

// write returns the statements of a transaction: entries, which adds rows to the ledger, and all with those
// that change counters.
func (l *Ledger) write(items []*item) (*pgdb.Statement, []*pgdb.Statement) {
	sync := false
	bills := []*batch.Bill{} // null is no list
	var charges []*batch.Charge
	for _, one := range items {
		if one.ID != "" {
			bills = append(bills, &one.Bill)
		}
		for k := range one.Charges {
			c := &one.Charges[k]
			sync = sync || c.Limit.AwaitsDisk()
			if c.RealUnits != 0 || c.Held != 0 {
				charges = append(charges, c)
			}
		}
	}
	text, _ := json.Marshal(bills) // it never fails for texts and numbers
	if bytes.Contains(text, []byte(`\u0000`)) || bytes.Contains(text, []byte(`\ufffd`)) {
		for _, b := range bills {
			makeStorable(b)
		}
		text, _ = json.Marshal(bills)
	}
	entries := &pgdb.Statement{SQL: l.Texts.Ledger(sync), Synchronous: sync,
		Args: []any{statement.Clock(l.Now(), lockWait), int64(len(bills)), string(text)}}
	var statements []*pgdb.Statement
	if l.Texts.Guarded {
		statements = append(statements, &pgdb.Statement{SQL: l.Texts.Index})
	}
	statements = append(append(statements, entries), l.Write(charges, items[0].name, sync, lockWait)...)
	for _, s := range statements[:len(statements)-1] {
		s.Joined = true
	}
	return entries, statements
}

// emptyResult is the length of the result of entries if its text is empty, as it is if all bills are known.
const emptyResult = 4

// makeStorable makes the texts of a bill storable.
func makeStorable(b *batch.Bill) {
	b.User = storable(b.User)
	b.ServiceTier = storable(b.ServiceTier)
	b.Answered = storable(b.Answered)
	for i := range b.Lines {
		b.Lines[i].Model = storable(b.Lines[i].Model)
	}
	for i, above := range b.Ancestors {
		b.Ancestors[i] = storable(above)
	}
}

// storable returns text that a column can store.
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

// reacquire holds for the current name what running requests hold for none or for an earlier one. It waits
// for the answers, and leaves out requests without one, which are held by the next call.
func (l *Ledger) reacquire() {
	l.mu.Lock()
	name := l.Name.Last()
	var calls []*batch.Call
	for hold, h := range l.held {
		if h.name == name && name != 0 || h.ending {
			continue
		}
		c := batch.NewCall()
		c.Prepare([]ratelimit.Hit{{Limit: algorithm.Unlimited(h.limit), Key: h.row.Key, Cost: h.units,
			Hold: hold}}, false)
		calls = append(calls, c)
	}
	l.mu.Unlock()
	for _, c := range calls {
		l.Send(c)
	}
	for _, c := range calls {
		batch.Wait(c)
	}
}

// takeFormer removes and returns earlier names that end, unless running requests or settlements that wait
// still hold units for one of them, or a batch reserves for it.
func (l *Ledger) takeFormer() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	former := l.former
	if len(former) == 0 {
		return nil
	}
	name := l.Name.Last()
	for _, h := range l.held {
		if h.name != 0 && h.name != name {
			return nil
		}
	}
	for _, one := range former {
		if l.reserving[one] > 0 {
			return nil
		}
	}
	l.former = nil
	return former
}
