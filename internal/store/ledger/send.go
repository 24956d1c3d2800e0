package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"sort"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/session"
	"github.com/pgratelimit/pg-ratelimit/internal/store/statement"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// tickInterval is the time between two checks for a due renewal of the session.
	tickInterval = 250 * time.Millisecond
	// sendTimeout bounds a transaction, and lockWait its wait for the lock of a row.
	sendTimeout = 2 * time.Second
	lockWait    = 200 * time.Millisecond
	// maxBatch bounds the settlements of a transaction.
	maxBatch = 200
	// retryPause is the time after which a settlement is sent again that has failed by itself.
	retryPause = 2 * time.Second
	// noPartition is the SQLSTATE of a row for which the ledger has no partition.
	noPartition = "23514"
)

// item is a settlement or a release that waits, or was sent without an answer.
type item struct {
	batch.Bill
	// For each of Charges, the session and the units of its hold, from when the item is first sent.
	sessions, holds []int64

	alone    bool // send it in a transaction of its own, because it has failed with others
	notUntil time.Time
}

// run sends what waits and renews the session, until the store is closed.
func (l *Ledger) run() {
	for l.Closing.Err() == nil {
		pause, cancel := context.WithTimeout(l.Closing, tickInterval)
		l.mu.Lock()
		l.wake = cancel // what is added from now on is sent at once
		l.mu.Unlock()
		l.Report(batch.PanicError(func() {
			if l.step(time.Now()) {
				cancel()
			}
		}))
		<-pause.Done()
		cancel()
	}
}

// step renews the session, sends a transaction, and holds again what a new session does not hold. It reports
// whether more can be sent at once.
func (l *Ledger) step(now time.Time) bool {
	if l.Health.Unavailable() != nil {
		return false
	}
	l.mu.Lock()
	if l.uncertain && len(l.unknown) == 0 && now.Sub(l.beganAt) >= session.RenewInterval {
		l.uncertain = false
		l.session.Expire()
	}
	l.mu.Unlock()
	l.session.Renew(l.Closing, now)
	items := l.unknown
	if len(items) == 0 {
		items = l.take(now)
	}
	if len(items) > 0 && !l.send(items, now) {
		return false
	}
	l.holdAgain()
	l.endFormer()
	return len(items) > 0
}

// take removes the next items that are due: a number of them, or one that is sent alone.
func (l *Ledger) take(now time.Time) []*item {
	l.mu.Lock()
	defer l.mu.Unlock()
	var taken, left []*item
	ids := map[string]bool{} // a transaction has each settlement once
	for n, i := range l.waiting {
		switch {
		case len(taken) == maxBatch || len(taken) > 0 && taken[0].alone:
			left = append(left, l.waiting[n:]...)
			l.waiting = left
			return taken
		case now.Before(i.notUntil) || i.alone && len(taken) > 0 || ids[i.ID]:
			left = append(left, i)
			continue
		}
		taken = append(taken, i)
		ids[i.ID] = i.ID != statement.NoSettlement
		for c := range i.Charges {
			name, units := int64(0), int64(0)
			if h := l.held[i.Charges[c].Slot]; h != nil {
				name, units = h.session, h.units
			}
			i.sessions = append(i.sessions, name)
			i.holds = append(i.holds, units)
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
	if failed := failure(statements); failed != nil {
		l.retry(items, failed, now)
		return true
	}
	added := string(entries.Result) // the numbers of the new rows
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, i := range items {
		for c := range i.Charges {
			// A settlement that came before has ended no hold of this one.
			l.uncertain = l.uncertain || i.holds[c] > 0 && !strings.Contains(added, i.ID)
			delete(l.held, i.Charges[c].Slot)
			if i.Charges[c].Units < i.holds[c] {
				lease.ClearRefusal(l.Rows, lease.RowOf(i.Charges[c].Limit, i.Charges[c].Key))
			}
		}
		if i.ID != statement.NoSettlement {
			l.unsettled--
			l.Settled(nil)
			for c := range i.Charges {
				if n := i.Charges[c].Notice; n != nil && l.Notify != nil {
					l.Notify(n)
				}
			}
		}
	}
	return true
}

// failure returns the statement that failed a transaction, or nil.
func failure(statements []*pgdb.Statement) *pgdb.Statement {
	for _, s := range statements {
		if s.Err != nil && !errors.Is(s.Err, pgdb.ErrRolledBack) {
			return s
		}
	}
	return nil
}

// retry sends the items of a transaction that has failed again, each by itself.
func (l *Ledger) retry(items []*item, failed *pgdb.Statement, now time.Time) {
	if failed.Code == noPartition && l.Upkeep != nil {
		for _, i := range items {
			l.Report(l.Upkeep(i.Day))
		}
	} else if len(items) == 1 {
		l.Report(failed.Err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, i := range items {
		i.alone = true
		i.sessions = nil
		i.holds = nil
		if len(items) == 1 {
			i.notUntil = now.Add(retryPause)
		}
	}
	l.waiting = append(l.waiting, items...)
}

// withoutReleases returns the items of a transaction without an answer, to send again. If it was sent, it
// drops the releases, which must not be repeated, and the session ends.
func (l *Ledger) withoutReleases(items []*item, unsent bool) []*item {
	if unsent {
		return items
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var left []*item
	for _, i := range items {
		if i.ID != statement.NoSettlement {
			left = append(left, i)
			continue
		}
		delete(l.held, i.Charges[0].Slot)
		l.uncertain = true
	}
	return left
}

// settled is what the items of a transaction charge to one row.
type settled struct {
	row             lease.RowID
	key             statement.Key
	limit           *ratelimit.Limit
	ids             []string
	units           []int64
	sessions, holds []int64
}

// write returns the statements of a transaction: entries, which adds rows to the ledger, and then one for
// each row of counters, in the order in which all processes lock rows.
func (l *Ledger) write(items []*item) (*pgdb.Statement, []*pgdb.Statement) {
	sync := false
	byRow := map[lease.RowID]*settled{}
	var rows []*settled
	for _, i := range items {
		for c := range i.Charges {
			charge := &i.Charges[c]
			sync = sync || charge.Limit.AwaitsDisk()
			id := lease.RowOf(charge.Limit, charge.Key)
			r := byRow[id]
			if r == nil {
				r = &settled{row: id, limit: charge.Limit}
				byRow[id] = r
				rows = append(rows, r)
			}
			r.ids = append(r.ids, i.ID)
			r.units = append(r.units, charge.Units)
			r.sessions = append(r.sessions, i.sessions[c])
			r.holds = append(r.holds, i.holds[c])
		}
	}
	for _, r := range rows {
		counted := *r.limit
		counted.Reserves = false
		r.key = statement.Key{Kind: statement.Settle, Definition: algorithm.Of(&counted),
			Durable: r.limit.Durable, Sync: sync, Uniform: true}
	}
	sort.Slice(rows, func(a, b int) bool { return precedes(rows[a], rows[b]) })
	entries := &pgdb.Statement{SQL: l.Texts.Ledger(sync), Args: ledgerArgs(items), Joined: true,
		Synchronous: sync}
	statements := []*pgdb.Statement{entries}
	if l.Texts.Guarded {
		statements = append([]*pgdb.Statement{{SQL: l.Texts.Index, Joined: true}}, statements...)
	}
	clock := statement.Clock(l.Now(), lockWait)
	for _, r := range rows {
		text := l.Texts.Of(r.key)
		args := []any{clock, r.row.Prefix, r.row.Key}
		for _, p := range text.Parameters {
			switch p.Name {
			case "ids":
				args = append(args, r.ids)
			case "units":
				args = append(args, r.units)
			case "sessions":
				args = append(args, r.sessions)
			case "holds":
				args = append(args, r.holds)
			case "span":
				args = append(args, r.limit.Window.Microseconds())
			case "anchor":
				args = append(args, r.limit.Anchor)
			case "unit":
				args = append(args, statement.UnitOf(r.limit))
			case "zone":
				args = append(args, statement.ZoneOf(r.limit))
			}
		}
		statements = append(statements, &pgdb.Statement{SQL: text.SQL, Args: args, Joined: true})
	}
	statements[len(statements)-1].Joined = false
	return entries, statements
}

// precedes reports whether the statement of a row comes before that of another.
func precedes(a, b *settled) bool {
	switch {
	case a.key.Durable != b.key.Durable:
		return b.key.Durable
	case a.key.Definition != b.key.Definition:
		return a.key.Definition.Name < b.key.Definition.Name
	case a.row.Prefix != b.row.Prefix:
		return a.row.Prefix < b.row.Prefix
	}
	return a.row.Key < b.row.Key
}

// row is a row of the ledger.
type row struct {
	Day        int64    `json:"day"`
	ID         string   `json:"id"`
	User       string   `json:"user_id"`
	KeyID      int64    `json:"key_id"`
	Ancestors  []string `json:"ancestors"`
	Model      string   `json:"model"`
	Input      int64    `json:"input"`
	CacheRead  int64    `json:"cache_read"`
	CacheWrite int64    `json:"cache_write"`
	Output     int64    `json:"output"`
	Money      int64    `json:"money"`
	Charges    []entry  `json:"charges"`
}

// entry is an element of the column charges of the ledger.
type entry struct {
	Prefix  string `json:"prefix"`
	Key     string `json:"key"`
	Durable bool   `json:"durable"`
	Unit    string `json:"unit"`
	Units   int64  `json:"units"`
}

// ledgerArgs returns the arguments of Texts.Ledger. Releases are not in the ledger.
func ledgerArgs(items []*item) []any {
	rows := []row{}
	for _, i := range items {
		if i.ID == statement.NoSettlement {
			continue
		}
		r := row{Day: i.Day, ID: i.ID, User: storable(i.User), KeyID: i.KeyID, Model: storable(i.Model),
			Input: i.Input, CacheRead: i.CacheRead, CacheWrite: i.CacheWrite, Output: i.Output,
			Money: i.Money}
		for _, above := range i.Ancestors {
			r.Ancestors = append(r.Ancestors, storable(above))
		}
		for c := range i.Charges {
			one := &i.Charges[c]
			id := lease.RowOf(one.Limit, one.Key)
			r.Charges = append(r.Charges, entry{id.Prefix, id.Key, id.Durable, one.Unit, one.Units})
		}
		rows = append(rows, r)
	}
	text, err := json.Marshal(rows)
	if err != nil { // impossible: there are only texts and numbers
		text = []byte("[]")
	}
	return []any{string(text)}
}

// storable returns text that a column can store.
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

// holdAgain holds for the current session what running requests hold for none or for an earlier one. It waits
// for the answers, and leaves out requests without one, which are held by the next call.
func (l *Ledger) holdAgain() {
	l.mu.Lock()
	name := l.session.Name()
	var calls []*batch.Call
	for slot, h := range l.held {
		if h.session == name && name != 0 || h.ending {
			continue
		}
		c := batch.NewCall()
		c.Prepare([]ratelimit.Hit{{Limit: algorithm.Unlimited(h.limit), Key: h.row.Key, Cost: h.units,
			Slot: slot}}, false)
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

// endFormer ends earlier sessions, unless running requests or settlements that wait still hold units for one
// of them.
func (l *Ledger) endFormer() {
	l.mu.Lock()
	if len(l.former) == 0 {
		l.mu.Unlock()
		return
	}
	name := l.session.Name()
	for _, h := range l.held {
		if h.session != 0 && h.session != name {
			l.mu.Unlock()
			return
		}
	}
	former := l.former
	l.former = nil
	l.mu.Unlock()
	for _, one := range former {
		l.session.EndOne(one)
	}
}
