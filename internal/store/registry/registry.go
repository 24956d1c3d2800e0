// Package registry keeps the row of this process in the registry of proxies, rate_limit_nodes. It reads there how many
// proxies there are.
//
//   - registry.go: the loop. row.go: the row. live.go: other proxies, and local limits. tables.go: the tables.
//   - report.go: what the process tells about its requests.
package registry

import (
	"context"
	"errors"
	"math/rand"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/session"
	"github.com/pgratelimit/pg-ratelimit/internal/store/chain"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Node is how a process is known in the registry.
type Node struct {
	// Name is the name of the process, the same after each start. If another process that is
	// not gone has the name, #2, #3 and so on is added.
	Name string
	// Version is that of the program, and Region where it runs. Both may be "".
	Version, Region string
	// Epoch is another number after each start of the process. Stores of one process on one
	// database have the same Name and Epoch, and share a row.
	Epoch int64
	// Notice is called when limits are local, and when they are exact again. It must not block. Nil drops the text.
	Notice func(text string)
	// Leave is called when the store is closed. It reports whether no other store has the row, which then says that the
	// process has ended. Nil is true.
	Leave func() bool
	// Totals returns what the process has decided on the database since its start. Nil leaves the columns NULL.
	Totals func() Totals
}

// Totals are counts of requests. Each is in one of the first three.
type Totals struct {
	Admitted, Refused, Undecided int64
	UndecidedAt                  time.Time // of the last one in Undecided
	Local                        int64     // of Admitted and Refused, those decided without the database
	Busiest                      string    // of the limits with the most requests: the JSON {prefix: [admitted, refused]}
}

// Store is what the registry needs of the store of the process.
type Store interface {
	// Prepare has the tables of counts made, unless they are as they must be, which Ready reports.
	Prepare()
	Ready() bool
	Unavailable() error
	// SetProxies says how many proxies there are, this one included.
	SetProxies(n int64)
	// Tick is called about once a second.
	Tick()
	// Local says whether this process limits by itself.
	Local() chain.Local
}

// Options are the settings of a Registry.
type Options struct {
	DisableMigration bool           // the operator makes the tables
	Random           func() float64 // nil is rand.Float64; another one is for simulations
	OnError          func(error)    // is called with failures; must not block; nil drops them
}

const (
	// pollInterval is the mean time between two polls. Up to a quarter more or less keeps the
	// proxies from asking at the same moment, after they have got an answer or the end of their connections at the same
	// moment.
	pollInterval = time.Second
	// heartbeatInterval is the time between two writes of the row, and newsInterval the least
	// if there is something new.
	heartbeatInterval = 3 * time.Second
	newsInterval      = time.Second
	// nodeTimeout is for one poll, with the write.
	nodeTimeout = 2 * time.Second
	// settingsInterval is the time between two looks at settings that do harm.
	settingsInterval = time.Minute
	// leaveTimeout is for the last write of the row.
	leaveTimeout = 500 * time.Millisecond
)

// Registry renews the row of a store in the registry of proxies. One goroutine
// uses it, except for what mutexes guard.
type Registry struct {
	db      pgdb.DB
	store   Store
	node    *Node // nil: there is no row
	options Options

	closing context.Context // ends with End
	stop    context.CancelFunc
	started int32         // 1 after Start or End; atomic
	running chan struct{} // closed when the goroutine has ended

	migrated  bool // the tables need not be made
	row       row
	live      liveProxies
	failures  map[string]string // the last one of each step
	reported  string            // what was reported of failures
	harmAt    time.Time         // when to look at settings again
	harmful   string            // what was reported of settings
	toldLocal bool              // Notice was told that limits are local

	mu       sync.Mutex // guards all that follows
	applied  applied
	problems []string // see cutProblems
}

// applied is the last change of the policy that a process obeys, and the log of changes that has it. seq is -1 without a
// policy.
type applied struct {
	seq int64
	log string
}

// New returns the registration of a store on db. It does nothing before Start, and nothing at all without a node.
func New(db pgdb.DB, s Store, n *Node, o Options) *Registry {
	if o.Random == nil {
		o.Random = rand.Float64
	}
	closing, stop := context.WithCancel(context.Background())
	return &Registry{db: db, store: s, node: n, options: o, closing: closing, stop: stop, running: make(chan struct{}),
		applied: applied{seq: -1}, failures: make(map[string]string)}
}

// SetApplied says which change of the policy the process obeys, in which log of
// changes (the oid of rate_limit_changes; a restore makes another one), and which rules it cannot use.
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

// End ends the goroutine, and says in the row that the process has ended. It is called once, before db is closed.
func (r *Registry) End() {
	r.stop()
	if r.node == nil {
		return
	}
	last := r.node.Leave == nil || r.node.Leave()
	if !atomic.CompareAndSwapInt32(&r.started, 0, 1) {
		<-r.running
		if last && r.row.listed && r.store.Unavailable() == nil {
			r.write(endedSQL, r.name())
		}
	}
}

// run renews the row until End.
func (r *Registry) run() {
	defer close(r.running)
	for r.closing.Err() == nil {
		interval := pollInterval
		if r.store.Ready() {
			r.fail("beat", batch.PanicError(func() { r.beat(time.Now()) }))
			r.reportFailures()
		} else {
			interval /= 40 // the tables of counts are about to be made
			if r.store.Local().On && r.store.Unavailable() == nil {
				r.store.Prepare() // no request may come that would have them made
			}
		}
		r.noticeLocal(time.Now())
		batch.Sleep(r.closing, time.Duration((0.75+r.options.Random()/2)*float64(interval)))
	}
}

// beat counts the proxies, and renews the row if that is due.
func (r *Registry) beat(now time.Time) {
	r.store.Tick()
	ctx, cancel := context.WithTimeout(r.closing, nodeTimeout)
	defer cancel()
	if !now.Before(r.harmAt) {
		r.harmAt = now.Add(settingsInterval)
		r.noticeSettings(ctx)
	}
	if !r.migrate(ctx, now) {
		return
	}
	var statements []*pgdb.Statement
	counts := !now.Before(r.live.refusals.until)
	if counts {
		statements = append(statements, &pgdb.Statement{SQL: liveSQL, Args: []any{r.name(), r.node.Epoch}})
	}
	if r.isDue(now) {
		statements = append(statements, r.renewals(now)...)
	}
	if len(statements) == 0 {
		return
	}
	if r.db.Run(ctx, statements) != nil {
		r.live.sure = now.Add(reappear) // a crash empties the table
		return
	}
	if counts {
		r.readLive(statements[0], now)
		statements = statements[1:]
	}
	if len(statements) > 0 {
		r.readRenewals(ctx, statements, now)
	}
}

// noticeSettings reports settings that do harm, once until they are others.
func (r *Registry) noticeSettings(ctx context.Context) {
	text := ""
	if harmful := session.Harmful(ctx, r.db); harmful != nil {
		text = harmful.Error()
	}
	if text != "" && text != r.harmful {
		r.report(text)
	}
	r.harmful = text
}

// fail sets the last failure, or that there is none any more.
func (r *Registry) fail(what string, err error) {
	delete(r.failures, what)
	if err != nil {
		r.failures[what] = err.Error()
	}
}

// reportFailures reports what fails in one line, once.
func (r *Registry) reportFailures() {
	var failures []string
	for _, what := range []string{"beat", "tables", "write", "read", "sweep"} {
		if failure := r.failures[what]; failure != "" {
			if strings.Contains(failure, "permission denied for table") {
				failure += " (its role needs GRANT SELECT, INSERT, UPDATE, DELETE ON rate_limit_nodes, rate_limit_processes, and SELECT ON rate_limit_secrets)"
			}
			failures = append(failures, failure)
		}
	}
	text := strings.Join(failures, "; ")
	if text == r.reported {
		return
	}
	r.reported = text
	if text != "" {
		r.report("the registry of proxies: " + text + ". Limits work without it; `nodes` does not show this proxy")
	}
}

// report passes a failure to Options.OnError.
func (r *Registry) report(text string) {
	if r.options.OnError != nil {
		_ = batch.PanicError(func() { r.options.OnError(errors.New(text)) })
	}
}

// tell calls Node.Notice.
func (r *Registry) tell(text string) {
	if r.node.Notice != nil {
		_ = batch.PanicError(func() { r.node.Notice(text) })
	}
}
