package postgres

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
)

// refuseLocked fails the requests on rows that are known to be locked, and returns the
// others.
func (d *decision) refuseLocked(requests []*request) ([]*request, error) {
	wait := lockWait(batch.Timeout(d.queue))
	var due []rowKey
	for _, r := range requests {
		_, due = d.engine.locks.holds(r, wait, due)
	}
	if len(due) > 0 {
		holders, unseen, err := d.findLocked(due)
		if err != nil {
			return nil, err
		}
		d.engine.locks.confirm(due, holders, unseen)
	}
	return d.refuseHeld(requests), nil
}

// refuseHeld is refuseLocked without a question to the server.
func (d *decision) refuseHeld(requests []*request) []*request {
	wait := lockWait(batch.Timeout(d.queue))
	var left, refused []*request
	for _, r := range requests {
		if holds, _ := d.engine.locks.holds(r, wait, nil); holds {
			refused = append(refused, r)
		} else {
			left = append(left, r)
		}
	}
	d.finish(refused, errLocked)
	return left
}

// lockedSQL returns the places of the keys with locked rows, each with the transaction that
// holds the lock. For a key without a row the transaction is NULL: an open transaction may have
// inserted the row.
const lockedSQL = `WITH unlocked AS MATERIALIZED (
	SELECT u.slot FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u(prefix, key, slot) CROSS JOIN LATERAL (SELECT ` + findSQL + ` FOR UPDATE SKIP LOCKED) r)
SELECT u.slot, r.holder FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u(prefix, key, slot) LEFT JOIN LATERAL (SELECT t.xmax::text::bigint AS holder ` + findSQL + `) r ON true
WHERE NOT EXISTS (SELECT FROM unlocked WHERE unlocked.slot = u.slot)`

// findLocked returns the transactions that hold the locks of rows, and which rows cannot be
// seen.
func (d *decision) findLocked(rows []rowKey) (map[rowKey]int64, map[rowKey]bool, error) {
	holders := map[rowKey]int64{}
	unseen := map[rowKey]bool{}
	for _, durable := range []bool{false, true} {
		var prefixes, keys []string
		var ids []rowKey
		for _, id := range rows {
			if id.durable == durable {
				ids = append(ids, id)
				prefixes = append(prefixes, id.prefix)
				keys = append(keys, id.key)
			}
		}
		if len(ids) == 0 {
			continue
		}
		statement := &Statement{SQL: strings.Replace(lockedSQL, "{table}", tableName(durable), -1), Args: []any{prefixes, keys}, Unnamed: true}
		if err := d.execute([]*Statement{{SQL: indexSQL, Joined: true}, statement}); err != nil {
			return nil, nil, err
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
	return holders, unseen, nil
}

// waitedForLock returns the rows of the statements that have waited for a lock in vain, and
// marks their entries.
func (p *plan) waitedForLock() []rowKey {
	var all []rowKey
	for _, pass := range p.passes {
		for _, g := range pass {
			if g.statement.Code != sqlstate.LockNotAvailable {
				continue
			}
			for _, e := range g.entries {
				e.waited = true
				all = append(all, e.id)
			}
		}
	}
	return all
}

// splitWaiting separates the requests with an entry that has waited for a lock in vain. The
// others have taken effect, and must not be decided again.
func splitWaiting(requests []*request) ([]*request, []*request) {
	var waiting, others []*request
	for _, r := range requests {
		waits := false
		for i := range r.positions {
			at := &r.positions[i]
			waits = waits || at.entry.waited || at.refund != nil && at.refund.waited
		}
		if waits {
			waiting = append(waiting, r)
		} else {
			others = append(others, r)
		}
	}
	return waiting, others
}

// waitedAlone returns the rows for each of which a statement for this row alone has waited for
// the lock in vain.
func (p *plan) waitedAlone() []rowKey {
	var rows []rowKey
	for _, pass := range p.passes {
		for _, g := range pass {
			if g.alone && g.statement.Code == sqlstate.LockNotAvailable {
				rows = append(rows, g.entries[0].id)
			}
		}
	}
	return rows
}

// busyAlone returns those rows of waitedAlone that are merely busy: they can be seen, and no
// transaction has locked them any more. Other transactions lock them one after the other.
func (p *plan) busyAlone(holders map[rowKey]int64, unseen map[rowKey]bool) map[rowKey]bool {
	var busy map[rowKey]bool
	for _, id := range p.waitedAlone() {
		if holders[id] == 0 && !unseen[id] {
			if busy == nil {
				busy = map[rowKey]bool{}
			}
			busy[id] = true
		}
	}
	return busy
}

// postponeBusy sets the requests on busy rows aside, and returns the others.
func (d *decision) postponeBusy(requests []*request, busy map[rowKey]bool) []*request {
	if len(busy) == 0 {
		return requests
	}
	var left []*request
	for _, r := range requests {
		isBusy := false
		for i := range r.call.Hits {
			isBusy = isBusy || busy[rowOf(&r.call.Hits[i])]
		}
		if isBusy {
			d.postponed = append(d.postponed, r)
		} else {
			left = append(left, r)
		}
	}
	return left
}

// postpone sets the requests on locked rows aside, and returns the others.
func (d *decision) postpone(requests []*request, holders map[rowKey]int64) []*request {
	if len(holders) == 0 {
		return requests
	}
	if d.holders == nil {
		d.holders = map[rowKey]int64{}
	}
	for id, holder := range holders {
		d.holders[id] = holder
	}
	var left []*request
	for _, r := range requests {
		if holderOf(r, holders) == 0 {
			left = append(left, r)
		} else {
			d.postponed = append(d.postponed, r)
		}
	}
	return left
}

// holderOf returns the transaction that holds the lock of a request's row, or 0.
func holderOf(r *request, holders map[rowKey]int64) int64 {
	for i := range r.call.Hits {
		if holder := holders[rowOf(&r.call.Hits[i])]; holder != 0 {
			return holder
		}
	}
	return 0
}

// rememberLocked remembers the rows of which a transaction holds the locks: it holds all of
// them until it ends.
func (d *decision) rememberLocked(holder int64) {
	for id, other := range d.holders {
		if other == holder {
			d.engine.locks.add(id, holder, lockWait(batch.Timeout(d.queue)))
		}
	}
}

// rememberAlone remembers an unseen row as locked if a statement for this row alone has waited
// for the lock in vain: another transaction has inserted the row and is still open. A row that
// is seen and that no transaction has locked any more is merely busy.
func (d *decision) rememberAlone(p *plan, unseen map[rowKey]bool) {
	for _, id := range p.waitedAlone() {
		if unseen[id] {
			d.engine.locks.add(id, 0, lockWait(batch.Timeout(d.queue)))
		}
	}
}

// anyHeld reports whether one of the rows is locked.
func anyHeld(rows []rowKey, holders map[rowKey]int64) bool {
	for _, id := range rows {
		if holders[id] != 0 {
			return true
		}
	}
	return false
}

// undoSQL fails, which undoes its transaction.
const undoSQL = `SELECT 1 / (SELECT 0)`

// tryAlone runs the entries of a plan that have waited for a lock in vain, each in a transaction
// of its own that is undone, to find those that wait again although their rows are unseen.
func (d *decision) tryAlone(p *plan, unseen map[rowKey]bool) error {
	var alone []*group
	var statements []*Statement
	for _, pass := range p.passes {
		for _, g := range pass {
			if g.statement.Code != sqlstate.LockNotAvailable {
				continue
			}
			for _, e := range g.entries {
				if !unseen[e.id] {
					continue
				}
				one := nextGroup(p, g.statementKey)
				one.alone = true
				one.entries = append(one.entries, e)
				one.write(d.engine.texts, d.settings)
				one.statement.Joined = true
				alone = append(alone, one)
				statements = append(statements, &one.statement, &Statement{SQL: undoSQL, Unnamed: true})
			}
		}
	}
	if len(alone) == 0 {
		return nil
	}
	p.passes = append(p.passes, alone)
	err := d.execute(statements)
	d.rememberAlone(p, unseen)
	return err
}

// forgetHolders forgets what is known of a request's rows before it is decided again.
func (d *decision) forgetHolders(r *request) {
	for i := range r.call.Hits {
		delete(d.holders, rowOf(&r.call.Hits[i]))
	}
}
