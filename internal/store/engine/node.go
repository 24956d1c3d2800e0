package engine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/internal/core/timeline"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Node is how a process is known in the registry of proxies, rate_limit_nodes. A store with a Node
// also obeys a pause of the limits, see Store.Paused.
type Node struct {
	// Name is the name of the process, the same after each start. If another process that is
	// not gone has the name, #2, #3 and so on is added.
	Name string
	// Version is that of the program, and Region where it runs. Both may be "".
	Version, Region string
	// Epoch is another number after each start of the process. Stores of one process on one
	// database have the same Name and Epoch, and share a row.
	Epoch int64
	// Notice is called when a pause of the limits begins, each minute until it ends, and when it ends. It must not block. Nil drops the text.
	Notice func(text string)
	// Leave is called when the store is closed. It reports whether no other store has the row, which then says that the process has ended. Nil is true.
	Leave func() bool
}

const (
	// pollInterval is the mean time between two polls for a pause of the limits. Up to a quarter more or less keeps the
	// proxies from asking at the same moment, after they have got an answer or the end of their connections at the same moment.
	pollInterval = 500 * time.Millisecond
	// heartbeatInterval is the time between two writes of the row, and newsInterval the least
	// if there is something new.
	heartbeatInterval = 3 * time.Second
	newsInterval      = time.Second
	// nodeTimeout is for one poll, with the write.
	nodeTimeout = 2 * time.Second
	// leaveTimeout is for the last write of the row.
	leaveTimeout = 500 * time.Millisecond
	// nodeRetry is the time to the next attempt after one that the server has refused. During a
	// restore the tables are not there for a while. Each refusal doubles it, up to longestRetry.
	nodeRetry    = time.Second
	longestRetry = time.Minute
	// sweepNodes is the time between two deletions of the rows of vanished proxies.
	sweepNodes = time.Hour
	// remindInterval is the time between two notices of a pause.
	remindInterval = time.Minute
	// maxPause is the longest pause that is believed, in microseconds: a year.
	maxPause = 365 * 24 * 3600 * 1000000
)

// nodeSQL renews the row. It returns a row, with why the process makes no decisions, unless the name is that of another
// process which is not gone. What the policy has applied stays if this store has no policy: another store of the process
// may have one.
const nodeSQL = `INSERT INTO rate_limit_nodes AS n (node, version, epoch, paused, applied_seq, problems, log, live, region, cannot, seen)
VALUES ($1, nullif($2, ''), $3, $4::text::boolean, $5::bigint, coalesce($6::text[], '{}'), $7::text::oid, $8::text::json, nullif($9, ''), ` + schema.Cannot + `, now())
ON CONFLICT (node) DO UPDATE SET version = excluded.version, region = excluded.region, cannot = excluded.cannot, ended = NULL, epoch = excluded.epoch, paused = excluded.paused, seen = excluded.seen, live = excluded.live,
	applied_seq = CASE WHEN n.epoch = excluded.epoch THEN coalesce($5::bigint, n.applied_seq) ELSE excluded.applied_seq END,
	problems = CASE WHEN n.epoch = excluded.epoch THEN coalesce($6::text[], n.problems) ELSE excluded.problems END,
	log = CASE WHEN n.epoch = excluded.epoch THEN coalesce($7::text::oid, n.log) ELSE excluded.log END
WHERE n.epoch = excluded.epoch OR NOT ` + schema.NodeIsLive + `
RETURNING coalesce(n.cannot, '')`

// endedSQL says that a process has ended. leaveSQL deletes the row of a name that a process has no more, and sweepSQL those
// of processes that ended or vanished. cannotSQL is for a process that cannot write its row.
const (
	endedSQL  = `UPDATE rate_limit_nodes SET ended = now(), live = NULL WHERE node = $1 AND epoch = $2`
	cannotSQL = `SELECT coalesce(` + schema.Cannot + `, '')`
	leaveSQL  = `DELETE FROM rate_limit_nodes WHERE node = $1 AND epoch = $2`
	sweepSQL  = `DELETE FROM rate_limit_nodes WHERE seen < now() - interval '1 day'`
)

// registration renews the row of a store in the registry of proxies, and finds a pause there. One
// goroutine uses it, except for what mu guards.
type registration struct {
	store *Store
	node  Node

	started int32         // 1 after start; atomic
	running chan struct{} // closed when the goroutine has ended

	migrated  bool
	suffix    int       // of the name; 0 is none
	listed    bool      // there is a row of the name
	renewed   time.Time // when the row was renewed
	shown     applied   // what it says is applied, and whether limits are paused
	paused    bool
	swept     time.Time
	readAt    time.Time // when to read again, and when to write, after a refusal of the server
	writeAt   time.Time
	readIn    time.Duration // the time to readAt and to writeAt; 0 if the server has not refused
	writeIn   time.Duration
	pause     string // until when limits are paused, and by which role, for people
	told      bool   // Notice was told that limits are paused
	reminded  time.Time
	failures  map[string]string // the last failure, by what failed
	reported  string            // what was reported of them
	cannot    string            // what was reported of why the process makes no decisions
	others    liveProxies
	toldLocal bool // Notice was told that limits are local
	watching  watching
	overfull  int // how many prefixes the row says are overfull

	mu       sync.Mutex // guards all that follows
	applied  applied
	problems []string
}

// applied is the last change of the policy that a process obeys, and the log of changes that it is
// of. seq is -1 without a policy.
type applied struct {
	seq int64
	log string
}

// SetApplied says for the registry of proxies which change of the policy the process obeys, in which log of
// changes (the oid of rate_limit_changes; a restore makes another one), and which rules it cannot use. It does
// nothing without Options.Node.
func (s *Store) SetApplied(seq int64, log string, problems []string) {
	if s.registered == nil {
		return
	}
	r := s.registered
	r.mu.Lock()
	r.applied = applied{seq: seq, log: log}
	r.problems = append(make([]string, 0, len(problems)), problems...)
	r.mu.Unlock()
}

func newRegistration(s *Store, n Node) *registration {
	return &registration{store: s, node: n, applied: applied{seq: -1}, running: make(chan struct{}), failures: make(map[string]string)}
}

// start starts the goroutine, once.
func (r *registration) start() {
	if atomic.CompareAndSwapInt32(&r.started, 0, 1) {
		go r.run()
	}
}

// run renews the row until the store is closed.
func (r *registration) run() {
	defer close(r.running)
	closing := r.store.engine.server.closing
	for closing.Err() == nil {
		interval := pollInterval
		if atomic.LoadInt32(&r.store.engine.tables.ready) == 0 {
			interval /= 20 // the tables of counts are about to be made
			if !r.store.LocalSince().IsZero() && r.store.Unavailable() == nil {
				r.store.engine.tables.start() // no request may come that would have them made
			}
		} else {
			r.fail("beat", batch.PanicError(func() { r.beat(time.Now()) }))
			r.reportFailures()
		}
		r.notify(time.Now())
		r.notifyLocal()
		sleep(closing, time.Duration((0.75+r.store.engine.server.random()/2)*float64(interval)))
	}
}

// beat polls for a pause and for another timeline, and renews the row if that is due.
func (r *registration) beat(now time.Time) {
	server := r.store.engine.server
	ctx, cancel := context.WithTimeout(server.closing, nodeTimeout)
	defer cancel()
	if !r.migrate(ctx, now) {
		r.chargeLocal(ctx, now) // which ends the time of local limits, also without a registry
		return
	}
	if p := partsOf(r.store); p != nil {
		startTimelines(server.closing, p)
	}
	var statements, writes []*pgdb.Statement
	if !now.Before(r.readAt) {
		statements = append(statements, &pgdb.Statement{SQL: watchSQL}, &pgdb.Statement{SQL: timeline.SQL}, &pgdb.Statement{SQL: liveSQL})
	}
	r.mu.Lock()
	obeyed, problems := r.applied, r.problems
	r.mu.Unlock()
	age := now.Sub(r.renewed)
	news := !r.listed || obeyed != r.shown || r.store.Paused() != r.paused || r.watching.watched || r.watching.written
	if !now.Before(r.writeAt) && (age >= heartbeatInterval || news && age >= newsInterval) {
		writes = r.renewals(now, obeyed, problems)
		statements = append(statements, writes...)
	}
	sent := time.Now()
	if len(statements) == 0 || server.db.Run(ctx, statements) != nil {
		return // requests notice that the database does not answer
	}
	if len(statements) > len(writes) {
		r.readPause(statements[0], now)
		r.store.seeTimeline(statements[1], sent)
		r.readLive(statements[2], now)
	}
	if len(writes) > 0 {
		r.readRenewals(writes, now)
		if writes[0].Code == sqlstate.InsufficientPrivilege {
			look := &pgdb.Statement{SQL: cannotSQL, Unnamed: true}
			if server.db.Run(ctx, []*pgdb.Statement{look}) == nil {
				r.readCannot(look)
			}
		}
	}
	r.chargeLocal(ctx, now)
}

// migrate makes the tables of the registry, unless they are right. It reports whether they may be.
func (r *registration) migrate(ctx context.Context, now time.Time) bool {
	if r.migrated || r.store.engine.tables.disabled {
		return true
	}
	if now.Before(r.writeAt) {
		return false
	}
	found, down, err := lookForTables(ctx, r.store.engine.server.db)
	if err == nil && (found.restoring || !found.counters) { // the tables of counts were there
		err = schema.ErrRestoring
	}
	if err == nil {
		down, err = migrateNodes(ctx, r.store.engine.server.db)
	}
	if down {
		return false
	}
	r.fail("tables", err)
	r.migrated = err == nil
	if err != nil {
		r.writeAt = retryAt(now, &r.writeIn)
	}
	return r.migrated
}

// migrateNodes makes the tables of the registry what they must be. It reports whether the
// connection failed.
func migrateNodes(ctx context.Context, db pgdb.DB) (down bool, err error) {
	ready := &pgdb.Statement{SQL: schema.NodesReady}
	if err := db.Run(ctx, []*pgdb.Statement{ready}); err != nil {
		return true, err
	}
	if ready.Err != nil {
		return false, fmt.Errorf("looking for the tables: %w", ready.Err)
	}
	if columns := bigints(ready); len(columns) == 1 && columns[0] == 1 {
		return false, nil
	}
	if err := db.Exec(ctx, schema.NodesOnce); err != nil {
		return ctx.Err() != nil, fmt.Errorf("creating its tables (a role that may create tables can run caddy pg-ratelimit migrate, or schema.sql, instead): %w", err)
	}
	return false, nil
}

// readCannot reads why the process makes no decisions, and reports it once.
func (r *registration) readCannot(s *pgdb.Statement) {
	if s.Err != nil || len(s.Result) < 4 {
		return
	}
	text := string(s.Result[4:])
	if text != "" && text != r.cannot {
		r.store.engine.tables.report(errors.New("this proxy makes no decisions, because its role lacks privileges. To let it: " + text))
	}
	r.cannot = text
}

// name is the name of the row.
func (r *registration) name() string {
	if r.suffix == 0 {
		return r.node.Name
	}
	return r.node.Name + "#" + strconv.Itoa(r.suffix)
}

// renewals renew the row. A process with a suffix also tries to take the name without one. Now and then
// there is another statement: the deletion of the rows of proxies that ended or vanished.
func (r *registration) renewals(now time.Time, obeyed applied, problems []string) []*pgdb.Statement {
	var seq, log, texts any
	overfull := r.store.overfull()
	if obeyed.seq >= 0 {
		seq = obeyed.seq
		log = obeyed.log
		texts = append(append([]string{}, problems...), overfull...)
	} else if len(overfull) > 0 || r.overfull > 0 { // else another store of the process may have problems
		texts = overfull
	}
	r.overfull = len(overfull)
	live := r.liveText()
	r.shown = obeyed
	r.paused = r.store.Paused()
	r.renewed = now
	names := []string{r.node.Name}
	if r.suffix > 0 {
		names = append(names, r.name())
	}
	var all []*pgdb.Statement
	for _, name := range names {
		all = append(all, &pgdb.Statement{SQL: nodeSQL, Args: []any{name, r.node.Version, r.node.Epoch, strconv.FormatBool(r.paused), seq, texts, log, live, r.node.Region}, Unnamed: true})
	}
	if now.Sub(r.swept) >= sweepNodes {
		r.swept = now
		all = append(all, &pgdb.Statement{SQL: sweepSQL, Unnamed: true})
	}
	return all
}

// readRenewals reads the results of renewals.
func (r *registration) readRenewals(writes []*pgdb.Statement, now time.Time) {
	first, last := writes[0], writes[len(writes)-1]
	if last.SQL == sweepSQL {
		r.fail("sweep", last.Err)
	}
	r.fail("write", first.Err)
	for _, s := range writes {
		if s.SQL == nodeSQL && s.Rows == 1 {
			r.readCannot(s)
		}
	}
	if first.Err == nil {
		r.writeIn = 0
	}
	switch {
	case first.Err != nil:
		r.listed = false
		r.writeAt = retryAt(now, &r.writeIn)
		r.migrated = first.Code != "42P01" && first.Code != "42703" // a table or a column is missing
	case first.Rows == 1:
		if r.suffix > 0 {
			r.write(leaveSQL, r.name())
		}
		r.suffix = 0
		r.listed = true
	case r.suffix > 0 && writes[1].Err == nil && writes[1].Rows == 1:
		r.listed = true
	default:
		r.listed = false
		r.renewed = time.Time{} // try the next name at once
		r.suffix++
		if r.suffix == 1 {
			r.suffix = 2
		}
	}
}

// retryAt is when to try again after another refusal of the server. wait is the time to the last
// attempt, and then to this one.
func retryAt(now time.Time, wait *time.Duration) time.Time {
	*wait *= 2
	if *wait == 0 {
		*wait = nodeRetry
	}
	if *wait > longestRetry {
		*wait = longestRetry
	}
	return now.Add(*wait)
}

// fail sets the last failure, or that there is none any more.
func (r *registration) fail(what string, err error) {
	delete(r.failures, what)
	if err != nil {
		r.failures[what] = err.Error()
	}
}

// reportFailures reports what fails in one line, once.
func (r *registration) reportFailures() {
	var failures []string
	for _, what := range []string{"beat", "tables", "write", "read", "sweep", "live"} {
		if failure := r.failures[what]; failure != "" {
			if strings.Contains(failure, "permission denied for table") {
				failure += " (its role needs GRANT SELECT, INSERT, UPDATE, DELETE ON rate_limit_nodes, rate_limit_processes, and SELECT ON rate_limit_pause, rate_limit_secrets)"
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
		r.store.engine.tables.report(errors.New("the registry of proxies: " + text + ". Limits work without it; `nodes` does not show this proxy, or it does not obey `pause`"))
	}
}

// write deletes a row of this process, or ends it.
func (r *registration) write(sql, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	// After a failure the row is that of a proxy that vanished.
	_ = r.store.engine.server.db.Run(ctx, []*pgdb.Statement{{SQL: sql, Args: []any{name, r.node.Epoch}, Unnamed: true}})
}

// end says in the row that the process has ended, before the driver is closed. The store's server is closing.
func (r *registration) end() {
	last := r.node.Leave == nil || r.node.Leave()
	if !atomic.CompareAndSwapInt32(&r.started, 0, 1) {
		<-r.running
		if last && r.listed && r.store.engine.server.unavailable() == nil {
			r.write(endedSQL, r.name())
		}
	}
}
