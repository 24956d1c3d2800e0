// Package registry keeps the row of this process in rate_limit_nodes, the registry of proxies, and reads
// there how many proxies run. report.go counts requests for the row, and row.go writes it.
package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Node describes a process to the registry.
type Node struct {
	Name            string // the same after each start; several processes may have it
	Version, Region string // of the program, and where it runs; "" if not available
	Epoch           int64  // differs after each start; Name and Epoch are the key of the row
	// Notice is called when limits become local, and when they are exact again. It must not block. Nil drops
	// the text.
	Notice func(text string)
	// Leave is called by End. It reports whether no other store of the process uses the row, so that End
	// marks it as ended. Nil means true.
	Leave func() bool
	// Totals returns the counts of the row. Nil leaves them NULL.
	Totals func() Totals
}

// Totals counts requests since the start of the process. Each request is in one of the first three.
type Totals struct {
	Admitted, Refused, Undecided int64
	UndecidedAt                  time.Time // the time of the last undecided request
	Local                        int64     // admitted or refused without the database
	Busiest                      string    // the busiest limits, as JSON {prefix: [admitted, refused]}
}

// Store is the store that a Registry reports on.
type Store interface {
	// Prepare migrates the tables of counts, and Ready reports whether they are ready.
	Prepare()
	Ready() bool
	Unavailable() error
	// SetProxies sets the number of proxies, this one included.
	SetProxies(n int64)
	// Tick is called about once a second.
	Tick()
	// Local returns the decisions that this process makes by itself.
	Local() Local
}

// Local describes the decisions of a process by itself, in the current or the last outage.
type Local struct {
	On                bool      // limits are not exact yet
	Since, Last       time.Time // of the first and of the last decision
	Parts             float64   // the number of shares at the last decision
	Admitted, Refused int64     // requests

	// Charged, Unfit and Lost count units that were admitted on durable limits: those charged, those not
	// charged because they exceeded the quota, and those that may or may not have been charged.
	Charged, Unfit, Lost int64
}

// Options are the settings of a Registry.
type Options struct {
	DisableMigration bool           // the operator makes the tables
	Random           func() float64 // replaces rand.Float64 in simulations; nil is rand.Float64
	OnError          func(error)    // reports failures; must not block; nil drops them
}

const (
	// pollInterval is the mean time between two polls. It varies by a quarter, so that proxies do not ask
	// together.
	pollInterval = time.Second
	// heartbeatInterval is the time between two writes of the row. A change of the policy is written with the
	// next poll.
	heartbeatInterval = 3 * time.Second
	pollTimeout       = 2 * time.Second
	leaveTimeout      = 500 * time.Millisecond
	settingsInterval  = time.Minute // between two checks for harmful settings
	// staleAfter is the time without an answer after which the rows of other proxies may be outdated.
	// returnTime is the time that the other proxies may take to renew them.
	staleAfter = 2 * heartbeatInterval
	returnTime = 10 * time.Second
)

// Registry renews the row of a process. One goroutine uses it, except for the fields that a mutex guards.
type Registry struct {
	db      pgdb.DB
	store   Store
	node    *Node // nil for a process without a row
	options Options

	closing context.Context // ends with End
	stop    context.CancelFunc
	started int32         // 1 after Start or End; atomic
	running chan struct{} // closed when the goroutine has ended

	migrated        bool          // the tables of the registry exist
	backoff         time.Duration // from a failed poll to the next one; 0 after a success
	retryAt         time.Time     // the time of the next poll after a failure
	written         bool          // the last write of the row succeeded
	writtenAt       time.Time     // when the row was written
	writtenChange   applied       // the change in the row
	proxies         int64         // the number of running proxies
	countedAt       time.Time     // when they were counted
	exactFrom       time.Time     // a smaller count is ignored before this time
	checkSettingsAt time.Time     // when to check the settings again
	localNoticed    bool          // Notice has reported that limits are local
	reported        map[string]string

	mu       sync.Mutex // guards the fields below
	applied  applied
	problems []string // of the policy, see cutProblems
}

// applied is the last change of the policy that a process applies, and the oid of the log that has it: a
// restore makes another log. seq is -1 without a policy.
type applied struct {
	seq int64
	log string
}

// New returns a Registry for a store on db. It does nothing before Start, and nothing at all if n is nil.
func New(db pgdb.DB, s Store, n *Node, o Options) *Registry {
	if o.Random == nil {
		o.Random = rand.Float64
	}
	closing, stop := context.WithCancel(context.Background())
	return &Registry{db: db, store: s, node: n, options: o, closing: closing, stop: stop,
		running: make(chan struct{}), applied: applied{seq: -1}, reported: map[string]string{}}
}

// SetApplied sets the change of the policy that the process applies, the log that has it, and the problems of
// rules.
func (r *Registry) SetApplied(seq int64, log string, problems []string) {
	r.mu.Lock()
	r.applied = applied{seq: seq, log: log}
	r.problems = cutProblems(problems)
	r.mu.Unlock()
}

// Start starts the goroutine, once.
func (r *Registry) Start() {
	if r.node != nil && atomic.CompareAndSwapInt32(&r.started, 0, 1) {
		go r.run()
	}
}

// End ends the goroutine, and writes into the row that the process has ended. It is called once, before db is
// closed.
func (r *Registry) End() {
	r.stop()
	if r.node == nil {
		return
	}
	last := r.node.Leave == nil || r.node.Leave()
	if atomic.CompareAndSwapInt32(&r.started, 0, 1) {
		return
	}
	<-r.running
	if last && r.written && r.store.Unavailable() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		// After a failure the row is that of a proxy that vanished.
		_ = r.db.Run(ctx,
			[]*pgdb.Statement{{SQL: endedSQL, Args: []any{r.node.Name, r.node.Epoch}, Unnamed: true}})
	}
}

// run polls until End.
func (r *Registry) run() {
	defer close(r.running)
	for r.closing.Err() == nil {
		interval := pollInterval
		if r.store.Ready() {
			r.pollSafely(time.Now())
		} else {
			interval /= 40 // the tables of counts are about to be made
			if r.store.Local().On && r.store.Unavailable() == nil {
				r.store.Prepare() // no request may come that has them made
			}
		}
		r.noticeLocal(time.Now())
		health.Sleep(r.closing, time.Duration((0.75+r.options.Random()/2)*float64(interval)))
	}
}

// pollSafely polls, unless the last poll failed lately, and reports a failure.
func (r *Registry) pollSafely(now time.Time) {
	r.store.Tick()
	if now.Before(r.retryAt) {
		return
	}
	var err error
	if failure := batch.PanicError(func() { err = r.poll(now) }); failure != nil {
		err = failure
	}
	if err == nil {
		r.backoff = 0
		r.report("poll", nil)
		return
	}
	if r.backoff *= 2; r.backoff == 0 {
		r.backoff = time.Second
	}
	if r.backoff > time.Minute {
		r.backoff = time.Minute
	}
	r.retryAt = now.Add(r.backoff)
	hint := ""
	if strings.Contains(err.Error(), "permission denied for table") {
		hint = " (its role needs GRANT SELECT, INSERT, UPDATE, DELETE ON rate_limit_nodes, " +
			"rate_limit_processes, and SELECT ON rate_limit_secrets)"
	}
	r.report("poll", fmt.Errorf("the registry of proxies: %w%s. Limits work without it; `nodes` does not "+
		"show this proxy", err, hint))
}

// poll counts the proxies, and renews the row if that is due. It returns no error for a connection that
// fails: requests show that.
func (r *Registry) poll(now time.Time) error {
	ctx, cancel := context.WithTimeout(r.closing, pollTimeout)
	defer cancel()
	if !now.Before(r.checkSettingsAt) {
		r.checkSettingsAt = now.Add(settingsInterval)
		r.report("settings", pg.Harmful(ctx, r.db))
	}
	if !r.migrated && !r.options.DisableMigration {
		err := makeTables(ctx, r.db)
		if ctx.Err() != nil || errors.Is(err, errDown) {
			return nil
		}
		if err != nil {
			return err
		}
		r.migrated = true
	}
	live := &pgdb.Statement{SQL: liveSQL, Args: []any{r.node.Name, r.node.Epoch}}
	statements := []*pgdb.Statement{live}
	due := r.isDue(now)
	if due {
		statements = append(statements, &pgdb.Statement{SQL: cannotSQL, Unnamed: true}, r.renewal(now))
	}
	if r.db.Run(ctx, statements) != nil {
		r.exactFrom = now.Add(returnTime) // a crash empties the table
		return nil
	}
	r.readLive(live, now)
	if due {
		r.readRenewal(statements[2], statements[1])
		if err := statements[2].Err; err != nil {
			return err
		}
	}
	return live.Err
}

// noticeLocal passes to Notice that limits are local, and that they are exact again. The row says it before.
func (r *Registry) noticeLocal(now time.Time) {
	l := r.store.Local()
	if l.On == r.localNoticed {
		return
	}
	r.localNoticed = l.On
	text := "the database makes no decisions: this proxy limits by itself, at " +
		strconv.FormatFloat(100/l.Parts, 'g', 3, 64) + " % of each limit"
	if !l.On {
		r.writtenAt = time.Time{}
		r.pollSafely(now) // if that fails, the row does not say it
		text = fmt.Sprintf("limits are exact again: this proxy has admitted %d requests by itself, and "+
			"refused %d. Of durable limits, %d units were charged, %d were beyond the quotas, and %d could "+
			"not be charged",
			l.Admitted, l.Refused, l.Charged, l.Unfit, l.Lost)
	}
	if r.node.Notice != nil {
		_ = batch.PanicError(func() { r.node.Notice(text) })
	}
}

// report passes a failure to Options.OnError, unless it is the last one of its kind. Nil is none.
func (r *Registry) report(kind string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != r.reported[kind] && r.options.OnError != nil {
		_ = batch.PanicError(func() { r.options.OnError(err) })
	}
	r.reported[kind] = text
}
