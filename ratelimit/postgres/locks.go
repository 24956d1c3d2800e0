package postgres

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Another transaction may hold the lock of a row for a long time: an operator's open
// session, or a program that hangs. One locked row must not delay the decisions on all
// others. A statement waits for a lock for lockWait and then fails as a whole. The requests of
// its entries wait in dispatch.waiting until the rest of the batch is finished. decideWaiting
// then asks which rows are locked, and by which transaction. It sends the requests on all other
// rows again, each by itself, and after them those on locked rows, one after the other. A
// transaction that still holds a lock after another lockWait is remembered, and the requests on
// all rows that it has locked fail at once.
//
// The transaction is asked for because two rows look alike without it: one that an open
// transaction has locked, and one that is merely busy, because batches of other proxies lock the
// row one after the other (TestBusyRowsAreWaitedFor). A transaction holds all of its locks until
// it ends, so that one wait tells of all rows that it has locked (TestLockedRowsDelayNoOthers).
//
// If another transaction has inserted the row, no query shows the row. Such a row counts as
// locked if statements for this row only have waited for the lock in vain for lockWait.

// lockWait is a fifth of the timeout, so that a batch has time to go on after it.
func lockWait(timeout time.Duration) time.Duration {
	wait := (timeout / 5).Truncate(time.Millisecond)
	if wait < time.Millisecond {
		return time.Millisecond // 0 would be no bound
	}
	return wait
}

// errLocked is the error of a hit on a locked row.
var errLocked = fmt.Errorf("%w: another transaction has locked the row of a key", ratelimit.ErrTimeout)

const (
	// lockMemory is for how long a row counts as locked until seeLocks asks about its lock again. A
	// row that no query shows counts as locked for two waits: to ask about its lock takes another wait.
	lockMemory = 100 * time.Millisecond

	// longMemory is when all is forgotten if nothing was seen locked meanwhile.
	longMemory = 10 * time.Second

	// maxLocks bounds the rows.
	maxLocks = 10000

	// maxWaits bounds how often a request waits for a lock by itself.
	maxWaits = 5
)

// locks are the rows that were seen locked lately.
type locks struct {
	any  int32 // 1 if there may be rows; atomic, so that the usual batch takes no lock
	mu   sync.Mutex
	rows map[lease.RowID]*holder // guarded by mu
	last time.Time               // when one of the rows was seen locked; guarded by mu
}

// holder is a transaction that holds the locks of rows, or the unknown transaction, 0, that has
// inserted one row. The mutex of locks guards it.
type holder struct {
	transaction int64
	first, last time.Time // when it was seen to hold a lock
}

// find reports whether one of a request's rows was seen locked for that long. due is whether the
// server is to be asked about the lock again: the first caller asks, and all others count the row as
// locked meanwhile.
func (l *locks) find(r *request, wait time.Duration) (locked, due bool) {
	locked = false
	due = false
	if atomic.LoadInt32(&l.any) == 0 {
		return false, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.last) >= longMemory {
		l.rows = nil
		atomic.StoreInt32(&l.any, 0)
	}
	for i := range r.call.Hits {
		h := l.rows[rowOf(&r.call.Hits[i])]
		if h == nil || h.last.Sub(h.first) < wait {
			continue
		}
		memory := lockMemory
		if h.transaction == 0 {
			memory = 2 * wait
		}
		if now.Sub(h.last) >= memory {
			h.last = now
			due = true
		}
		locked = true
	}
	return locked, due
}

// has reports whether a row was seen locked lately, and by which transaction.
func (l *locks) has(id lease.RowID) (transaction int64, known bool) {
	if atomic.LoadInt32(&l.any) == 0 {
		return 0, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.rows[id]
	if h == nil {
		return 0, false
	}
	return h.transaction, true
}

// see records what the server has said of rows: the transactions that hold their locks, and which rows
// no query shows. The value of a row is whether a statement for this row only has waited for the
// lock in vain.
func (l *locks) see(rows map[lease.RowID]bool, holders map[lease.RowID]int64, unseen map[lease.RowID]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	byTransaction := map[int64]*holder{}
	for _, h := range l.rows {
		byTransaction[h.transaction] = h
	}
	for id, only := range rows {
		h := l.rows[id]
		transaction := holders[id]
		if h != nil && (h.transaction != transaction || transaction == 0 && !unseen[id]) {
			h.first = now // it has ended, and holds no other lock either
			h.last = now
			delete(l.rows, id)
			h = nil
		}
		if transaction == 0 && !only || transaction == 0 && !unseen[id] {
			continue
		}
		if h == nil && transaction != 0 {
			h = byTransaction[transaction]
		}
		if h == nil {
			h = &holder{transaction: transaction, first: now}
			byTransaction[transaction] = h
		}
		h.last = now
		if l.rows == nil || len(l.rows) >= maxLocks {
			l.rows = map[lease.RowID]*holder{}
		}
		id.Key = strings.Clone(id.Key) // the key may be a part of a long request
		l.rows[id] = h
		l.last = now
		atomic.StoreInt32(&l.any, 1)
	}
}

// refuseLocked fails the requests on rows that are known to be locked, and returns the others. A
// request that is due (see find) waits for the end of the batch.
func (d *dispatch) refuseLocked(requests []*request) []*request {
	if atomic.LoadInt32(&d.engine.locks.any) == 0 {
		return requests
	}
	var left, refused []*request
	for _, r := range requests {
		switch locked, due := d.engine.locks.find(r, d.lockWait); {
		case due:
			d.waiting = append(d.waiting, r)
		case locked:
			refused = append(refused, r)
		default:
			left = append(left, r)
		}
	}
	d.finish(refused, errLocked)
	return left
}

// suspectWaits makes seeLocks ask about the rows of the statements that have waited for a lock in vain,
// and reports whether there are some.
func (d *dispatch) suspectWaits(p *plan) bool {
	waited := false
	for _, stage := range p.stages {
		for _, g := range stage {
			if g.statement.Code != sqlstate.LockNotAvailable {
				continue
			}
			waited = true
			for _, e := range g.entries {
				d.suspect(e.id, len(g.entries) == 1)
			}
		}
	}
	return waited
}

// suspect makes seeLocks ask about a row. only is whether a statement for this row only has waited.
func (d *dispatch) suspect(id lease.RowID, only bool) {
	if d.suspects == nil {
		d.suspects = map[lease.RowID]bool{}
	}
	d.suspects[id] = d.suspects[id] || only
}

// lockedSQL returns the indexes of the keys with locked rows, each with the transaction that
// holds the lock. For a key without a row the transaction is NULL: an open transaction may have
// inserted the row.
const lockedSQL = `WITH unlocked AS MATERIALIZED (
	SELECT u.slot FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u(prefix, key, slot) CROSS JOIN LATERAL (SELECT ` + findSQL + ` FOR UPDATE SKIP LOCKED) r)
SELECT u.slot, r.holder FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u(prefix, key, slot) LEFT JOIN LATERAL (SELECT t.xmax::text::bigint AS holder ` + findSQL + `) r ON true
WHERE NOT EXISTS (SELECT FROM unlocked WHERE unlocked.slot = u.slot)`

// seeLocks asks the server which rows are locked: those of the waiting requests, and those of the
// statements that have waited. It does not wait for them.
func (d *dispatch) seeLocks() error {
	for _, r := range d.waiting {
		for i := range r.call.Hits {
			d.suspect(rowOf(&r.call.Hits[i]), false)
		}
	}
	rows := d.suspects
	d.suspects = nil
	holders := map[lease.RowID]int64{}
	unseen := map[lease.RowID]bool{}
	for _, durable := range []bool{false, true} {
		var prefixes, keys []string
		var ids []lease.RowID
		for id := range rows {
			if id.Durable == durable {
				ids = append(ids, id)
				prefixes = append(prefixes, id.Prefix)
				keys = append(keys, id.Key)
			}
		}
		if len(ids) == 0 {
			continue
		}
		statement := &Statement{SQL: strings.Replace(lockedSQL, "{table}", d.engine.texts.tables[tableName(durable)].name, -1), Args: []any{prefixes, keys}, Unnamed: true}
		if err := d.execute([]*Statement{{SQL: d.engine.texts.index, Joined: true}, statement}); err != nil {
			return err
		}
		columns := bigints(statement)
		for i := 0; i+1 < len(columns); i += 2 {
			slot := columns[i]
			if slot < 1 || slot > int64(len(ids)) {
				continue
			}
			if columns[i+1] == 0 {
				unseen[ids[slot-1]] = true
			} else {
				holders[ids[slot-1]] = columns[i+1]
			}
		}
	}
	d.engine.locks.see(rows, holders, unseen)
	return nil
}

// decideWaiting decides the requests that have waited for a lock in vain, or are due (see
// find).
func (d *dispatch) decideWaiting() error {
	if err := d.seeLocks(); err != nil {
		return err
	}
	var locked, others []*request
	for _, r := range d.waiting {
		if d.hasLocked(r) {
			locked = append(locked, r)
		} else {
			others = append(others, r)
		}
	}
	d.waiting = nil
	if len(others) > 0 {
		settings := d.settings
		d.settings = shortWait(settings, int64(len(others)))
		if err := d.decideRequests(others, true); err != nil {
			return err
		}
		d.settings = settings
		locked = append(locked, d.waiting...)
		if len(d.waiting) > 0 {
			if err := d.seeLocks(); err != nil {
				return err
			}
		}
	}
	for _, r := range locked {
		if err := d.decideLocked(r); err != nil {
			return err
		}
	}
	return nil
}

// hasLocked reports whether a known transaction held the lock of one of a request's rows when
// seeLocks asked last.
func (d *dispatch) hasLocked(r *request) bool {
	for i := range r.call.Hits {
		if transaction, _ := d.engine.locks.has(rowOf(&r.call.Hits[i])); transaction != 0 {
			return true
		}
	}
	return false
}

// decideLocked decides a request on a locked row, which may merely be busy.
func (d *dispatch) decideLocked(r *request) error {
	one := []*request{r}
	for waits := 0; !r.finished; waits++ {
		if locked, _ := d.engine.locks.find(r, d.lockWait); locked || waits == maxWaits {
			d.finish(one, errLocked)
			break
		}
		d.waiting = nil
		if err := d.decideRequests(one, true); err != nil {
			return err
		}
		if r.finished {
			break
		}
		if err := d.seeLocks(); err != nil {
			return err
		}
	}
	return nil
}
