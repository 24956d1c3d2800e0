package engine

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/results"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// A limit with MaxKeys bounds the rows of its prefix in the background, so that a flood of new keys fills
// neither the disk nor the cache of the server. Beyond it, rows of this prefix that have used one unit at
// most are deleted, those first that expire first. A row that has used more stays, so that a key that is
// used up is refused throughout. If there are too few rows to delete, the table grows, and the prefix is
// overfull: Options.OnError, Stats.Overfull and the registry of proxies say so.

const (
	// boundInterval is the least time between two counts of a prefix, and boundTime what is added for
	// each key: a count reads up to MaxKeys rows of an index. With several proxies, each counts so many times less.
	boundInterval = time.Second
	boundTime     = 10 * time.Microsecond
	// forgetPrefix is after how long without a request a prefix is not counted any more.
	forgetPrefix = time.Minute
	// boundRows is how many rows a statement deletes, mostSearched how many it looks at beyond MaxKeys, and mostSurplus
	// how many rows are counted beyond MaxKeys.
	boundRows    = 5000
	mostSearched = 100000
	mostSurplus  = 500000
)

// rowsSQL counts the rows of a prefix, up to a number. surplusSQL deletes rows that have used one unit at
// most, among as many as it may look at. Each runs after indexSQL.
const (
	rowsSQL    = `SELECT count(*) FROM (SELECT FROM {table} t WHERE t.prefix = $1::text ORDER BY t.expires_at LIMIT $2::bigint) c`
	surplusSQL = `WITH deleted AS (DELETE FROM {table} WHERE ctid = ANY (ARRAY(
	SELECT r.ctid FROM {table} r WHERE r.slots IS NULL AND {used_once}
	AND r.ctid = ANY (ARRAY(SELECT t.ctid FROM {table} t WHERE t.prefix = $1::text ORDER BY t.expires_at LIMIT $3::bigint))
	ORDER BY r.expires_at LIMIT $2::bigint FOR UPDATE SKIP LOCKED)) RETURNING 1)
SELECT count(*) FROM deleted`
)

// keyBounds are the prefixes with MaxKeys that are in use.
type keyBounds struct {
	cleaner *cleaner
	proxies int64 // how many there are; atomic
	stores  int   // among how many the keys are divided
	notice  func(text string)

	mu       sync.Mutex // guards all that follows
	prefixes map[string]*keyBound
	running  bool // watch runs
}

// keyBound is what the process knows of a prefix.
type keyBound struct {
	limit    *ratelimit.Limit
	used     time.Time
	due      time.Time // when to count
	overfull bool
}

// see records that limits with MaxKeys are in use.
func (b *keyBounds) see(limits []*ratelimit.Limit) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range limits {
		k := b.prefixes[l.Prefix]
		if k == nil {
			k = &keyBound{due: now.Add(boundInterval)}
			b.prefixes[l.Prefix] = k
		}
		k.limit = l
		k.used = now
	}
	if !b.running {
		b.running = true
		go b.watch()
	}
}

// watch counts the rows of the prefixes in use, until no prefix is in use.
func (b *keyBounds) watch() {
	closing := b.cleaner.server.closing
	for {
		batch.Sleep(closing, boundInterval/4)
		limits, in := b.take(time.Now())
		if !in {
			return
		}
		for _, l := range limits {
			l := l
			var err error
			if failure := batch.PanicError(func() { err = b.bound(l) }); failure != nil {
				err = failure
			}
			if err != nil && closing.Err() == nil && !errors.Is(err, errLost) && b.cleaner.server.unavailable() == nil {
				b.cleaner.report(fmt.Errorf("ratelimit/postgres: max_keys of prefix %q: %w", l.Prefix, err))
			}
		}
	}
}

// take returns the limits whose prefixes are to be counted now, and whether a prefix is in use.
func (b *keyBounds) take(now time.Time) ([]*ratelimit.Limit, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var due []*ratelimit.Limit
	for prefix, k := range b.prefixes {
		if now.Sub(k.used) > forgetPrefix {
			delete(b.prefixes, prefix)
			continue
		}
		if now.Before(k.due) || b.cleaner.server.unavailable() != nil {
			continue
		}
		interval := boundInterval + time.Duration(k.limit.MaxKeys)*boundTime
		if live := atomic.LoadInt64(&b.proxies); live > 1 {
			interval *= time.Duration(live)
		}
		k.due = now.Add(interval/2 + time.Duration(b.cleaner.server.random()*float64(interval)))
		due = append(due, k.limit)
	}
	if len(b.prefixes) == 0 || b.cleaner.server.closing.Err() != nil {
		b.running = false
		return nil, false
	}
	return due, true
}

// bound deletes what the prefix of a limit has too much.
func (b *keyBounds) bound(l *ratelimit.Limit) error {
	most := int64((l.MaxKeys + b.stores - 1) / b.stores)
	rows, err := b.run(rowsSQL, l, most+mostSurplus)
	if err != nil {
		return err
	}
	for more := l.Capacity() > 1 && rows > most; more; { // a row that has used one of one is used up
		chunk := rows - most
		if chunk > boundRows {
			chunk = boundRows
		}
		var deleted int64
		deleted, err = b.run(surplusSQL, l, chunk, most+mostSearched)
		rows -= deleted
		more = deleted == chunk && rows > most
	}
	b.set(l, rows > most+most/10) // also if a deletion has failed, which took too long for instance
	return err
}

// run runs a statement on the rows of a prefix, and returns its number.
func (b *keyBounds) run(text string, l *ratelimit.Limit, numbers ...any) (int64, error) {
	statement := &pgdb.Statement{SQL: boundSQL(text, l, b.cleaner.texts.tables[ephemeralTable].Name),
		Args: append([]any{l.Prefix}, numbers...), Unnamed: true}
	if err := b.cleaner.run(statement); err != nil {
		return 0, err
	}
	found := results.Bigints(statement.Result)
	if len(found) != 1 {
		return 0, errColumns
	}
	return found[0], nil
}

// boundSQL writes a statement for a limit. Its numbers are in the text, because not every algorithm uses each of them.
func boundSQL(text string, l *ratelimit.Limit, table string) string {
	once := strings.NewReplacer("{quota}", strconv.FormatInt(l.Capacity(), 10),
		"{span}", strconv.FormatInt(l.Window.Microseconds(), 10),
		"{events}", strconv.FormatInt(l.Events, 10)).Replace(algorithm.Of(l).SQL.UsedOnce)
	return strings.NewReplacer("{used_once}", once, "{table}", table).Replace(text)
}

// set records whether the prefix of a limit is overfull, and tells of a change.
func (b *keyBounds) set(l *ratelimit.Limit, overfull bool) {
	b.mu.Lock()
	k := b.prefixes[l.Prefix]
	changed := k != nil && k.overfull != overfull
	if changed {
		k.overfull = overfull
	}
	b.mu.Unlock()
	if changed && overfull {
		b.notice(overfullText(l))
	} else if changed {
		b.notice(fmt.Sprintf("prefix %q has at most max_keys (%d) keys again", l.Prefix, l.MaxKeys))
	}
}

// overfullText says that a prefix is overfull.
func overfullText(l *ratelimit.Limit) string {
	return fmt.Sprintf("prefix %q has more than max_keys (%d) keys, and the table grows: too few keys have used one unit at most, and others are never deleted", l.Prefix, l.MaxKeys)
}

// overfull returns what is wrong with the prefixes that are overfull.
func (b *keyBounds) overfull() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var texts []string
	for _, k := range b.prefixes {
		if k.overfull {
			texts = append(texts, overfullText(k.limit))
		}
	}
	return texts
}
