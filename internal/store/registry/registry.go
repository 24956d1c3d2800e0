// Package registry keeps the row of this process in rate_limit_nodes, the registry of proxies, and counts the
// running proxies there.
//
// A Registry polls once a second for its store. The row holds the Report of the process as one JSON object,
// which the view rate_limit_proxies reads.
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
	Version, Region string // the program's version and its region; "" if unknown
	Epoch           int64  // differs after each start; Name and Epoch are the key of the row
	// Notice, if not nil, is called when limits become local, and when they are exact again. It must not
	// block.
	Notice func(text string)
	// Report holds the rest of the row. Stores that share the row share the Report.
	Report *Report
}

// Store is the store that a Registry polls for.
type Store interface {
	// Prepare migrates the tables of counts, and Ready reports whether the tables are ready.
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
	Since, Last       time.Time // the times of the first and the last decision
	Parts             float64   // the number of shares at the last decision
	Admitted, Refused int64     // the numbers of requests

	// Charged, Unfit and Lost count units that were admitted on durable limits. After the outage, Charged
	// were charged, Unfit exceeded the quota, and Lost may or may not have been charged.
	Charged, Unfit, Lost int64
}

const (
	// pollInterval is the mean time between two polls. It varies by a quarter, so that proxies do not poll
	// together.
	pollInterval = time.Second
	// heartbeatInterval is the time between two writes of the row.
	heartbeatInterval = 3 * time.Second
	pollTimeout       = 2 * time.Second
	leaveTimeout      = 500 * time.Millisecond
	settingsInterval  = time.Minute // between two checks for harmful settings
	// fewerPolls is the number of successive polls, about one a second, that must find fewer proxies than
	// before. After a crash of the server, the table is empty, and other proxies may need 10 seconds to write
	// their rows again.
	fewerPolls = 12
)

// rowSQL renews the row, and deletes the rows of earlier processes with its name, and of processes that were
// silent for a day. endedSQL ends the row. liveSQL counts the proxies. cannotSQL returns the reason why the
// process makes no decisions, and needs no privilege on a table.
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

// Registry renews the row of a process.
type Registry struct {
	db      pgdb.DB
	store   Store
	node    *Node // nil for a process without a row
	options engine.Options

	closing context.Context // ends with End
	stop    context.CancelFunc
	start   sync.Once      // by Start or End
	running sync.WaitGroup // counts the goroutine

	// Only the goroutine of run uses the fields below, except that End reads writtenAt after run has
	// returned.
	pause           time.Duration     // the pause after the next failed poll
	retryAt         time.Time         // the time of the next poll after a failure
	writtenAt       time.Time         // the time of the last write of the row
	proxies         int64             // the number of running proxies
	fewer           int               // the number of successive polls that found fewer
	checkSettingsAt time.Time         // the time of the next check of the settings
	cannot          string            // the result of cannotSQL
	localNoticed    bool              // Notice has reported that limits are local
	reported        map[string]string // the last failure of each kind, see report
}

// New returns a Registry for a store on db with options. It does nothing before Start, and if n is nil it
// never does anything.
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

// SetApplied sets a snapshot of the database in which the changes of the policy that the process applies are
// visible, and no others. It also sets the oid of the log of changes, and the problems of rules.
func (r *Registry) SetApplied(applied, log string, problems []string) {
	if r.node == nil {
		return
	}
	report := r.node.Report
	report.mu.Lock()
	defer report.mu.Unlock()
	report.row.Applied, report.row.Log = applied, log
	report.row.Problems = cutProblems(problems)
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

// End ends the goroutine. The last store that shares the row also marks the row as ended. End is called once,
// before db is closed.
func (r *Registry) End() {
	r.stop()
	if r.node == nil {
		return
	}
	last := r.node.Report.leave()
	r.start.Do(func() {})
	r.running.Wait()
	if last && !r.writtenAt.IsZero() && r.store.Unavailable() == nil {
		// If this fails, the row looks like the row of a proxy that vanished.
		_ = r.db.Run(context.Background(), leaveTimeout,
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
			interval /= 40 // the tables of counts are about to be created
			if r.store.Local().On && r.store.Unavailable() == nil {
				r.store.Prepare() // perhaps no request comes that creates them
			}
		}
		r.noticeLocal()
		health.Sleep(r.closing, time.Duration((0.75+r.options.Random()/2)*float64(interval)))
	}
}

// pollSafely polls unless it is too early after a failed poll, and reports a failure.
func (r *Registry) pollSafely(now time.Time) {
	r.store.Tick()
	if now.Before(r.retryAt) {
		return
	}
	err := batch.Try(func() error { return r.poll(now) })
	if err == nil {
		r.pause = 0
	} else {
		r.retryAt = now.Add(r.pause)
		if r.pause = 2*r.pause + time.Second; r.pause > time.Minute {
			r.pause = time.Minute
		}
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

// poll counts the proxies, and renews the row if that is due. It returns no error for a failed connection,
// because requests report that.
func (r *Registry) poll(now time.Time) error {
	if !now.Before(r.checkSettingsAt) {
		r.checkSettingsAt = now.Add(settingsInterval)
		r.report("settings", pg.Harmful(r.closing, r.db))
	}
	live := &pgdb.Statement{SQL: liveSQL}
	cannot := &pgdb.Statement{SQL: cannotSQL, Unnamed: true}
	renewal := &pgdb.Statement{SQL: rowSQL, Unnamed: true}
	statements := []*pgdb.Statement{live}
	if now.Sub(r.writtenAt) >= heartbeatInterval {
		local := r.store.Local()
		renewal.Args = []any{r.node.Name, r.node.Epoch, r.node.Report.makeRow(r.node, now, r.cannot, &local)}
		statements = []*pgdb.Statement{live, cannot, renewal}
	}
	if r.db.Run(r.closing, pollTimeout, statements) != nil {
		r.fewer = 0
		return nil
	}
	if live.Code == pg.UndefinedTable && !r.options.DisableMigration {
		return r.makeTable()
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

// makeTable creates the table. It is missing if an older program created the tables of counts.
func (r *Registry) makeTable() error {
	err := r.db.Exec(r.closing, pollTimeout, schema.NodesOnce)
	if err != nil && r.closing.Err() == nil {
		return fmt.Errorf("creating its tables (a role that may create tables can run caddy pg-ratelimit "+
			"migrate, or schema.sql, instead): %w", err)
	}
	return nil
}

// setProxies sets the number of proxies that a poll has found. A smaller number counts only after fewerPolls
// successive polls, because after an outage some proxies have not written their rows yet.
func (r *Registry) setProxies(n int64) {
	r.fewer++
	if n >= r.proxies || n > 0 && r.fewer >= fewerPolls {
		r.proxies, r.fewer = n, 0
		r.store.SetProxies(n)
	}
}

// readCannot reads the result of cannotSQL.
func (r *Registry) readCannot(cannot *pgdb.Statement) {
	if cannot.Err != nil || len(cannot.Result) < 4 {
		return
	}
	r.cannot = string(cannot.Result[4:])
	var err error
	if r.cannot != "" {
		err = errors.New("this proxy makes no decisions, because its role lacks privileges. To let it: " +
			r.cannot)
	}
	r.report("cannot", err)
}

// noticeLocal calls Notice when limits become local and when they are exact again.
func (r *Registry) noticeLocal() {
	l := r.store.Local()
	if l.On == r.localNoticed {
		return
	}
	r.localNoticed = l.On
	text := "the database makes no decisions: this proxy limits by itself, at " +
		strconv.FormatFloat(100/l.Parts, 'g', 3, 64) + " % of each limit"
	if !l.On {
		text = fmt.Sprintf("limits are exact again: this proxy has admitted %d requests by itself, and "+
			"refused %d. Of durable limits, %d units were charged, %d were beyond the quotas, and %d could "+
			"not be charged",
			l.Admitted, l.Refused, l.Charged, l.Unfit, l.Lost)
	}
	if r.node.Notice != nil {
		_ = batch.PanicError(func() { r.node.Notice(text) })
	}
}

// report passes err to Options.Report unless it equals the last err of its kind. A nil err reports success.
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
