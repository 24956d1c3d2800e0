// Package process keeps the name of this process: a row of rate_limit_processes, by which requests hold slots
// or units. The process renews it. For other processes, a name expires ten seconds after its last
// renewal, and what it holds is free. This process stops using the name earlier, when lifetime has passed
// on either of two clocks, because the monotonic clock may stand still while the machine is suspended, and
// the wall clock may be set back. It then takes a new name, and holds again what it held.
//
// The files, from the top down: process.go.
//
// Traefik interprets this package: see internal/testkit/imports/interpreted.go for the restrictions.
package process

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/store/statement"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// RenewInterval is the time between two renewals.
	RenewInterval = 3 * time.Second
	// lifetime is the time for which a name is used after its last renewal was sent.
	lifetime = 8 * time.Second
	// RenewTimeout bounds one renewal.
	RenewTimeout = time.Second
	// endTimeout bounds the statement of End.
	endTimeout = 500 * time.Millisecond
	// startPause is the time between two looks while another call takes a name.
	startPause = 5 * time.Millisecond
)

// startSQL takes a name, ends the previous one ($1), and returns the new one. A new name is above all names
// in the table, and a row stays in the table for a day after its name, so no name is used twice. A new name
// ignores names that are an hour or more ahead, which a wrong clock made, because such a name would push all
// later names ahead. renewSQL renews a name that was last renewed at most 8 seconds ago (lifetime). Other
// processes wait for 10 seconds (algorithm/in_flight.go), so a renewal never revives a name after they have
// freed what it held.
const (
	startSQL = `WITH ended AS (UPDATE {processes} SET seen = '-infinity' WHERE process = $1::bigint),
	swept AS (DELETE FROM {processes} WHERE seen < clock_timestamp() - interval '1 day'
		AND process < extract(epoch FROM clock_timestamp())::bigint - 946684800 - 86400)
INSERT INTO {processes} (process, seen)
SELECT greatest(extract(epoch FROM clock_timestamp())::bigint - 946684800,
	coalesce(max(process) FILTER (WHERE process < extract(epoch FROM clock_timestamp())::bigint - 946684800
		+ 3600) + 1, 0)), clock_timestamp() FROM {processes}
ON CONFLICT (process) DO NOTHING RETURNING process`
	renewSQL = `UPDATE {processes} SET seen = clock_timestamp() WHERE process = $1::bigint
	AND seen BETWEEN clock_timestamp() - interval '8 s' AND clock_timestamp() + interval '8 s'
	RETURNING process`
	endSQL = `UPDATE {processes} SET seen = '-infinity' WHERE process = $1::bigint`
)

// Options connect what requests hold to the store.
type Options struct {
	Closing context.Context // ends when the store is closed
	Health  *health.Health  // tracks the server
	DB      pgdb.DB
	Texts   *statement.Texts
	Report  func(error)

	// Run runs statements on DB as for a request, and retries lost transactions.
	Run func(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) (bool, error)

	Send func(c *batch.Call) // sends a call to a queue of the store; batch.Wait follows
}

// Name is the current name of a process, or none yet.
type Name struct {
	options  Options
	keeps    bool
	began    func(previous int64)
	starting int32 // 1 while a call of Get takes a name; atomic

	mu        *sync.Mutex // the owner's mutex, which guards the fields below
	name      int64       // 0 before the first name
	renewedAt time.Time   // the time at which the last renewal was sent; zero if the name is over
}

// New returns a Name before the first Get. mu is the mutex of its owner. keeps is set if the previous name
// goes on, without renewals, until the owner calls EndOne. Otherwise it is over when the process takes the
// new one. began is called when the process has a name, with the one before, or 0. Its caller holds the
// mutex.
func New(mu *sync.Mutex, o Options, keeps bool, began func(previous int64)) *Name {
	return &Name{options: o, keeps: keeps, began: began, mu: mu}
}

// Last returns the last name, or 0. The caller holds the mutex.
func (n *Name) Last() int64 { return n.name }

// Taken reports whether the process has taken a name.
func (n *Name) Taken() bool {
	name, _ := n.current()
	return name != 0
}

// Expire makes the next Get take a new name. The caller holds the mutex.
func (n *Name) Expire() { n.renewedAt = time.Time{} }

// Replace makes the next Get take a new name, unless name is replaced already.
func (n *Name) Replace(name int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if name == n.name {
		n.Expire()
	}
}

// usable reports whether the process may use its name. The caller holds the mutex.
func (n *Name) usable(now time.Time) bool {
	return n.name != 0 && now.Sub(n.renewedAt) < lifetime &&
		now.Round(0).Sub(n.renewedAt.Round(0)) < lifetime
}

// current returns the name, and reports whether the process may use it.
func (n *Name) current() (int64, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.name, n.usable(time.Now())
}

// Get returns a usable name. It takes a new one if necessary, with timeout for each attempt.
func (n *Name) Get(ctx context.Context, timeout time.Duration) (int64, error) {
	name, ok := n.current()
	if ok {
		return name, nil
	}
	for !atomic.CompareAndSwapInt32(&n.starting, 0, 1) {
		if name, ok = n.current(); ok {
			return name, nil
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		health.Sleep(ctx, startPause)
	}
	defer atomic.StoreInt32(&n.starting, 0)
	previous, ok := n.current()
	if ok {
		return previous, nil
	}
	ends := previous
	if n.keeps {
		ends = 0
	}
	sent := time.Now()
	for {
		start := &pgdb.Statement{SQL: startSQL, Args: []any{ends}, Unnamed: true}
		if _, err := n.options.Run(ctx, timeout, n.options.Texts.OnProcesses(start)); err != nil {
			return 0, err
		}
		if start.Err != nil {
			return 0, fmt.Errorf("the process of running requests: %w", start.Err)
		}
		if names := pg.Bigints(start.Result); len(names) == 1 {
			name = names[0]
			break
		}
	}
	n.mu.Lock()
	n.name = name
	n.renewedAt = sent
	n.began(previous)
	n.mu.Unlock()
	return name, nil
}

// Renew renews the name if that is due at now. If the name is over, Renew takes a new one. A failure
// is not reported, because requests detect an outage, and the owner calls Renew again.
func (n *Name) Renew(now time.Time) {
	n.mu.Lock()
	name, fresh, renewedAt := n.name, n.usable(now), n.renewedAt
	n.mu.Unlock()
	if name == 0 || fresh && now.Sub(renewedAt) < RenewInterval {
		return
	}
	if fresh {
		renewal := &pgdb.Statement{SQL: renewSQL, Args: []any{name}, Unnamed: true}
		err := n.options.DB.Run(n.options.Closing, RenewTimeout, n.options.Texts.OnProcesses(renewal))
		if err != nil || renewal.Err != nil {
			return
		}
		n.mu.Lock()
		// Meanwhile, a batch may have taken another name, or the owner has ended this one.
		replaced := n.name != name || n.renewedAt != renewedAt
		switch {
		case replaced:
		case renewal.Rows == 1:
			n.renewedAt = now
		default:
			n.renewedAt = time.Time{} // the row has expired
		}
		n.mu.Unlock()
		if replaced || renewal.Rows == 1 {
			return
		}
	}
	_, _ = n.Get(n.options.Closing, RenewTimeout)
}

// End ends the name when the process ends. After a failure the name expires.
func (n *Name) End() {
	name, _ := n.current()
	n.EndOne(name)
}

// EndOne ends a name of the process, unless the database is unavailable. After a failure the name expires.
func (n *Name) EndOne(name int64) {
	if name != 0 && n.options.Health.Unavailable() == nil {
		_ = n.options.DB.Run(context.Background(), endTimeout,
			n.options.Texts.OnProcesses(&pgdb.Statement{SQL: endSQL, Args: []any{name}, Unnamed: true}))
	}
}
