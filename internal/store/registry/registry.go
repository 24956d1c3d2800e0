// Package registry keeps the row of this process in rate_limit_nodes, the registry of proxies, and reads
// there how many proxies run.
//
// A Registry polls once a second for its store. The row has what the Report of the process says, as one JSON
// object, which the view rate_limit_proxies reads.
package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
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
	// Report has the rest of the row. The stores of a process that have the row share it.
	Report *Report
}

// Store is the store that a Registry polls for.
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
	// fewerPolls is the number of successive polls, about one a second, that must find fewer proxies than
	// before. A crash empties the table, and the others may need 10 seconds to write their rows again.
	fewerPolls = 12
)

// rowSQL renews the row, and deletes those of earlier processes of its name and of processes that were silent
// for a day. endedSQL ends the row. liveSQL counts the proxies. cannotSQL returns why the process makes no
// decisions, also to one that may not write its row.
const (
	rowSQL = `WITH gone AS (DELETE FROM rate_limit_nodes n WHERE n.seen < now() - interval '1 day'
	OR n.node = $1::text AND n.epoch <> $2::bigint AND NOT ` + schema.NodeIsLive + `)
INSERT INTO rate_limit_nodes (node, epoch, report) VALUES ($1::text, $2::bigint, $3::text::json)
ON CONFLICT (node, epoch) DO UPDATE SET seen = excluded.seen, ended = NULL, system = excluded.system,
	report = excluded.report`
	endedSQL  = `UPDATE rate_limit_nodes SET ended = now() WHERE node = $1 AND epoch = $2`
	liveSQL   = `SELECT count(*) FROM rate_limit_nodes n WHERE ` + schema.NodeIsLive
	cannotSQL = `SELECT coalesce(` + schema.MissingGrants + `, '')`
)

// Registry renews the row of a process. One goroutine uses it.
type Registry struct {
	db      pgdb.DB
	store   Store
	node    *Node // nil for a process without a row
	options engine.Options

	closing context.Context // ends with End
	stop    context.CancelFunc
	start   sync.Once      // by Start or End
	running sync.WaitGroup // counts the goroutine

	backoff         time.Duration // from a failed poll to the next one; 0 after a success
	retryAt         time.Time     // the time of the next poll after a failure
	writtenAt       time.Time     // when the row was written
	proxies         int64         // the number of running proxies
	fewer           int           // how many successive polls have found fewer
	checkSettingsAt time.Time     // when to check the settings again
	localNoticed    bool          // Notice has reported that limits are local
	reported        map[string]string
}

// New returns a Registry for a store on db with options. It does nothing before Start, and nothing at all if
// n is nil.
func New(db pgdb.DB, s Store, n *Node, options engine.Options) *Registry {
	if options.Random == nil {
		options.Random = rand.Float64
	}
	if n != nil && n.Report == nil {
		n.Report = newReport()
	}
	closing, stop := context.WithCancel(context.Background())
	return &Registry{db: db, store: s, node: n, options: options, closing: closing, stop: stop,
		proxies: 1, reported: map[string]string{}}
}

// SetApplied sets the change of the policy that the process applies, the log that has it, and the problems of
// rules.
func (r *Registry) SetApplied(seq int64, log string, problems []string) {
	if r.node != nil {
		r.node.Report.setApplied(seq, log, problems)
	}
}

// Start starts the goroutine, once.
func (r *Registry) Start() {
	if r.node != nil {
		r.start.Do(func() {
			r.running.Add(1)
			go r.run()
		})
	}
}

// End ends the goroutine, and with the last store that has the row writes into it that the process has ended.
// It is called once, before db is closed.
func (r *Registry) End() {
	r.stop()
	if r.node == nil {
		return
	}
	last := r.node.Report.leave()
	r.start.Do(func() {})
	r.running.Wait()
	if last && !r.writtenAt.IsZero() && r.store.Unavailable() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		// After a failure the row is that of a proxy that vanished.
		_ = r.db.Run(ctx,
			[]*pgdb.Statement{{SQL: endedSQL, Args: []any{r.node.Name, r.node.Epoch}, Unnamed: true}})
	}
}

// run polls until End.
func (r *Registry) run() {
	defer r.running.Done()
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
	r.backoff *= 2
	switch {
	case err == nil:
		r.backoff = 0
	case r.backoff == 0:
		r.backoff = time.Second
	case r.backoff > time.Minute:
		r.backoff = time.Minute
	}
	r.retryAt = now.Add(r.backoff)
	if err != nil {
		hint := ""
		if strings.Contains(err.Error(), "permission denied for table") {
			hint = " (its role needs GRANT SELECT, INSERT, UPDATE, DELETE ON rate_limit_nodes, " +
				"rate_limit_processes, and SELECT ON rate_limit_secrets)"
		}
		err = fmt.Errorf("the registry of proxies: %w%s. Limits work without it; `nodes` does not show "+
			"this proxy", err, hint)
	}
	r.report("poll", err)
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
	live := &pgdb.Statement{SQL: liveSQL}
	cannot := &pgdb.Statement{SQL: cannotSQL, Unnamed: true}
	renewal := &pgdb.Statement{SQL: rowSQL, Unnamed: true}
	statements := []*pgdb.Statement{live}
	age := now.Sub(r.writtenAt)
	if age >= heartbeatInterval || age >= pollInterval && r.node.Report.hasNews() {
		renewal.Args = []any{r.node.Name, r.node.Epoch, r.node.Report.makeRow(r.node, now)}
		statements = []*pgdb.Statement{live, cannot, renewal}
	}
	if r.db.Run(ctx, statements) != nil {
		r.fewer = 0
		return nil
	}
	if live.Code == pg.UndefinedTable && !r.options.DisableMigration {
		return r.makeTable(ctx)
	}
	if counts := pg.Bigints(live.Result); len(counts) == 1 {
		r.setProxies(counts[0])
	}
	if len(statements) > 1 {
		r.readCannot(cannot)
		if renewal.Err == nil {
			r.writtenAt = now
		}
	}
	if live.Err != nil {
		return live.Err
	}
	return renewal.Err
}

// makeTable makes the table, which lacks if the tables of counts were made by an older program.
func (r *Registry) makeTable(ctx context.Context) error {
	if err := r.db.Exec(ctx, schema.NodesOnce); err != nil && ctx.Err() == nil {
		return fmt.Errorf("creating its tables (a role that may create tables can run caddy pg-ratelimit "+
			"migrate, or schema.sql, instead): %w", err)
	}
	return nil
}

// setProxies sets the number of proxies that a poll has found. Fewer than before must be found again and
// again: after an outage, those that have not come back yet count.
func (r *Registry) setProxies(n int64) {
	r.fewer++
	if n >= r.proxies || n > 0 && r.fewer >= fewerPolls {
		r.proxies, r.fewer = n, 0
		r.store.SetProxies(n)
	}
}

// readCannot reads the result of cannotSQL into the row.
func (r *Registry) readCannot(cannot *pgdb.Statement) {
	if cannot.Err != nil || len(cannot.Result) < 4 {
		return
	}
	text := string(cannot.Result[4:])
	r.node.Report.setCannot(text)
	var err error
	if text != "" {
		err = errors.New("this proxy makes no decisions, because its role lacks privileges. To let it: " +
			text)
	}
	r.report("cannot", err)
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
		r.node.Report.setLocal(l.Since, l.Last)
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

// report passes a failure to the options, unless it is the last one of its kind. Nil is none.
func (r *Registry) report(kind string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != r.reported[kind] {
		r.options.Report(err)
	}
	r.reported[kind] = text
}
