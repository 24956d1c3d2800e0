package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
)

// A limit with MaxKeys bounds the rows of its prefix, so that a flood of new keys fills neither the disk
// nor the cache of the server. While the prefix has more rows, a key without a row that counts is
// charged on one row, which all such keys share: see shareKeys. So a key may be refused sooner than by a row
// of its own, and not later, but for the exceptions below:
//
//   - A key with a row that counts goes on with this row.
//   - When the prefix has few rows again, a key without a row gets one that begins as the shared row is, until
//     the shared row has expired.
//   - All proxies that read the number of rows in time give such copies before the first of them shares, and as long
//     as the shared row counts after that.
//
// A key can get a second quota by a hit that is under way as sharing begins or ends, by the first batch of a process, in
// which no prefix is known to have a bound, and if the window is shorter than the time between two reads.
//
// What the proxies agree on is in two rows of the prefix with keys that no client can have: the shared row, and one
// with the number of rows. One of the proxies counts them, and all others read that.

// The keys of the two rows. Each key of a client that begins with batch.DigestPrefix is stored as its digest.
const (
	otherKey  = batch.DigestPrefix + "(other)"
	numberKey = batch.DigestPrefix + "(number of keys)"
)

// keyMode says how a key without a row that counts is charged.
type keyMode uint8

const (
	newRow  keyMode = iota // on a row of its own
	rowCopy                // on a row of its own that begins as the shared row is
	oneRow                 // on the shared row
)

const (
	// shareAfter is the time from the count that finds too many rows to the first charge of the shared row. All
	// proxies have read that count then.
	shareAfter = 3 * pollInterval
	// countLasts is how old a count may be. The time between two is at most 101 seconds.
	countLasts = 5 * time.Minute
	// forgetPrefix is after how long without a request a prefix is not watched any more.
	forgetPrefix = time.Minute
	// freshMode is how long a process believes that the keys of a prefix have rows of their own.
	freshMode = 2 * pollInterval
	// keysTimeout is for the statement of one refresh, and for each count. keysLockWait is for a lock.
	keysTimeout  = 10 * time.Second
	keysLockWait = 100 * time.Millisecond
)

// readKeysSQL reads the two rows of prefixes. What is NULL comes as -1.
const readKeysSQL = clockSQL + `
SELECT u.slot, coalesce(r.granted, -1), coalesce((extract(epoch FROM now - r.window_start) * 1000000)::bigint, -1),
	coalesce((extract(epoch FROM now - r.last_refill) * 1000000)::bigint, -1), (r.expires_at > now)::int::bigint
FROM clock, unnest($2::text[], $3::text[]) WITH ORDINALITY AS u(prefix, key, slot), LATERAL (SELECT * ` + findSQL + `) r`

// haveRowSQL returns the keys that have a row, also one that waits for the cleanup: a window ends, and its key goes on.
const haveRowSQL = clockSQL + `
SELECT u.slot FROM clock, unnest($2::text[], $3::text[]) WITH ORDINALITY AS u(prefix, key, slot), LATERAL (SELECT * ` + findSQL + `) r`

// copyRowSQL gives keys without a row a copy of the shared row, if that one counts, and returns them. A key with a row has
// charged nothing there.
const copyRowSQL = clockSQL + `, copied AS (
INSERT INTO {table} AS r (prefix, key, count, prev_count, window_start, tokens, last_refill, hits, remainder, expires_at)
SELECT i.prefix, i.key, s.count, s.prev_count, s.window_start, s.tokens, s.last_refill, s.hits, s.remainder, s.expires_at
FROM clock, (SELECT prefix, key, '` + otherKey + `' AS other FROM unnest($2::text[], $3::text[]) AS u(prefix, key)) i,
	LATERAL (SELECT * FROM {table} t WHERE t.prefix = i.prefix AND t.key >= i.other AND t.key <= i.other ORDER BY t.key LIMIT 1) s
WHERE s.expires_at > now` + orderSQL + `
ON CONFLICT (prefix, key) DO NOTHING
RETURNING r.prefix, r.key)
SELECT u.slot FROM copied JOIN unnest($2::text[], $3::text[]) WITH ORDINALITY AS u(prefix, key, slot) USING (prefix, key)`

// prefixID names a prefix in one of the tables.
type prefixID struct {
	durable bool
	prefix  string
}

// keyBounds are the prefixes with MaxKeys that are in use.
type keyBounds struct {
	server *server
	now    func() time.Time // Options.Now
	report func(error)
	notice func(text string)

	on      int32 // 1 once a limit has MaxKeys; atomic. It stays 0 in parts
	told    int32 // 1 once the report that there are parts is made; atomic
	inParts bool  // nothing is bounded

	mu        sync.Mutex // guards all that follows
	prefixes  map[prefixID]*keyBound
	watched   bool   // watch runs
	counting  bool   // countAll runs
	failure   string // that fail reported
	uncounted error  // of the last countAll
}

// keyBound is what the process knows of a prefix.
type keyBound struct {
	max  int
	used time.Time
	mode keyMode
	read time.Time // when the mode was asked for
}

func newKeyBound(max int, used time.Time, mode keyMode) *keyBound {
	return &keyBound{max: max, used: used, mode: mode, read: used}
}

// errKeysInParts is reported once.
var errKeysInParts = errors.New("ratelimit/postgres: max_keys bounds nothing, because the counts are in parts")

// begin records that there are limits with MaxKeys.
func (b *keyBounds) begin() {
	if !b.inParts {
		atomic.StoreInt32(&b.on, 1)
	} else if atomic.CompareAndSwapInt32(&b.told, 0, 1) {
		b.report(errKeysInParts)
	}
}

// keysSQL writes a statement for a table.
func keysSQL(text string, durable bool) string {
	settings := ""
	if strings.Contains(text, "INSERT") {
		settings = commitSQL(durable, false) + lockSQL
	}
	return strings.NewReplacer("{table}", tableName(durable), "{settings}", settings).Replace(text)
}

// use returns the modes of prefixes that requests use. max has their MaxKeys. It asks the database about a
// prefix that it does not know, by execute.
func (b *keyBounds) use(execute func([]*Statement) error, ids []prefixID, max []int) ([]keyMode, error) {
	now := time.Now()
	var unknown []prefixID
	var unknownMax []int
	b.mu.Lock()
	for i, id := range ids {
		if k := b.prefixes[id]; k != nil {
			k.used = now
			k.max = max[i]
		} else {
			unknown = append(unknown, id)
			unknownMax = append(unknownMax, max[i])
		}
	}
	b.mu.Unlock()
	if len(unknown) > 0 {
		found, err := b.read(execute, unknown)
		if err != nil {
			return nil, err
		}
		b.mu.Lock()
		for i, id := range unknown {
			if b.prefixes[id] == nil {
				b.prefixes[id] = newKeyBound(unknownMax[i], now, found[id].mode())
			}
		}
		if !b.watched {
			b.watched = true
			go b.watch()
		}
		b.mu.Unlock()
	}
	modes := make([]keyMode, len(ids))
	b.mu.Lock()
	for i, id := range ids {
		if k := b.prefixes[id]; k != nil {
			modes[i] = k.mode
			if k.mode == newRow && now.Sub(k.read) > freshMode {
				modes[i] = rowCopy // others may share by now: a copy gives no second quota
			}
		}
	}
	b.mu.Unlock()
	return modes, nil
}

// shares reports whether keys without a row shared one when the database answered last.
func (b *keyBounds) shares(id prefixID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.prefixes[id]
	return k != nil && k.mode == oneRow
}

// watch reads the rows of the prefixes in use, and counts, until no prefix is in use.
func (b *keyBounds) watch() {
	for {
		sleep(b.server.closing, pollInterval)
		ids := b.inUse(time.Now())
		if ids == nil {
			return
		}
		if b.server.unavailable() != nil {
			continue
		}
		var err error
		if failure := batch.PanicError(func() { err = b.refresh(ids) }); failure != nil {
			err = failure
		}
		if err == nil {
			b.mu.Lock()
			err = b.uncounted
			b.mu.Unlock()
		}
		b.fail(err)
	}
}

// inUse returns the prefixes in use, or nil if watch is to end. Without the database no prefix is forgotten: see shares.
func (b *keyBounds) inUse(now time.Time) []prefixID {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ids []prefixID
	for id, k := range b.prefixes {
		if now.Sub(k.used) > forgetPrefix && b.server.unavailable() == nil {
			delete(b.prefixes, id)
		} else {
			ids = append(ids, id)
		}
	}
	if ids == nil || b.server.closing.Err() != nil {
		b.watched = false
		return nil
	}
	return ids
}

// fail reports a failure once.
func (b *keyBounds) fail(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == b.failure || b.server.closing.Err() != nil {
		return
	}
	b.failure = text
	if err != nil {
		b.report(fmt.Errorf("ratelimit/postgres: counting the keys of a prefix with max_keys: %w", err))
	}
}

// execute runs the statements of a refresh or a count.
func (b *keyBounds) execute(statements []*Statement) error {
	ctx, cancel := context.WithTimeout(b.server.closing, keysTimeout)
	defer cancel()
	err := b.server.db.Run(ctx, statements) // requests notice that the database does not answer
	b.server.counts.countErrors(statements, err)
	return err
}

// refresh reads the rows of prefixes, and has those that are due counted.
func (b *keyBounds) refresh(ids []prefixID) error {
	now := time.Now()
	found, err := b.read(b.execute, ids)
	if err != nil {
		return err
	}
	var due []prefixID
	for _, id := range ids {
		f := found[id]
		mode := f.mode()
		b.mu.Lock()
		k := b.prefixes[id]
		max := k.max
		before := k.mode
		k.mode = mode
		k.read = now
		b.mu.Unlock()
		if mode != before && mode == oneRow {
			b.notice(fmt.Sprintf("prefix %q has more than %d keys: new keys share one counter", id.prefix, max))
		} else if mode != before && before == oneRow {
			b.notice(fmt.Sprintf("prefix %q has at most %d keys again: new keys have counters of their own", id.prefix, max))
		}
		if f.age < 0 || f.age >= countEvery(max).Microseconds() {
			due = append(due, id)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(due) > 0 && !b.counting {
		b.counting = true
		go b.countAll(due)
	}
	return nil
}

// keysFound is what the two rows of a prefix say. Times are in microseconds.
type keysFound struct {
	age   int64 // of the count; -1 without one
	over  int64 // since when there are too many rows; -1 if there are not
	other bool  // the shared row counts
}

func (f keysFound) mode() keyMode {
	over := f.over >= 0 && f.age <= countLasts.Microseconds()
	switch {
	case over && f.over >= shareAfter.Microseconds():
		return oneRow
	case over || f.other:
		return rowCopy
	}
	return newRow
}

// read reads the two rows of each prefix.
func (b *keyBounds) read(execute func([]*Statement) error, ids []prefixID) (map[prefixID]keysFound, error) {
	found := make(map[prefixID]keysFound, len(ids))
	for _, id := range ids {
		found[id] = keysFound{age: -1, over: -1, other: false}
	}
	for _, durable := range []bool{false, true} {
		var prefixes, keys []string
		for _, id := range ids {
			if id.durable == durable {
				prefixes = append(prefixes, id.prefix, id.prefix)
				keys = append(keys, numberKey, otherKey)
			}
		}
		if len(keys) == 0 {
			continue
		}
		s := &Statement{SQL: keysSQL(readKeysSQL, durable), Args: []any{settingsOf(b.now, keysLockWait), prefixes, keys}}
		if err := runOne(execute, s); err != nil {
			return nil, err
		}
		const width = 5
		values := bigints(s)
		for at := 0; at+width <= len(values); at += width {
			slot := values[at] - 1
			if slot < 0 || slot >= int64(len(keys)) {
				return nil, errColumns
			}
			id := prefixID{durable: durable, prefix: prefixes[slot]}
			f := found[id]
			if keys[slot] == numberKey {
				f.age = values[at+2]
				f.over = values[at+3]
			} else {
				f.other = values[at+4] == 1
			}
			found[id] = f
		}
	}
	return found, nil
}

// runOne runs one statement.
func runOne(execute func([]*Statement) error, s *Statement) error {
	err := execute([]*Statement{{SQL: indexSQL, Joined: true}, s})
	if err == nil {
		err = s.Err
	}
	return err
}
