package host_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	delay   = 30 * time.Second // how long handles stay open after Release
	timeout = time.Second      // the timeout of each handler
)

// process is a Process with databases that do not answer. Connect fails for the database named "refused".
type process struct {
	host.Process
	t                 *testing.T
	connected, closed []string // the databases, in this order
}

func newProcess(t *testing.T) *process {
	p := &process{t: t, Process: host.Process{Kind: "test", Delay: delay, Log: func(host.Line) {}}}
	p.Connect = func(source *host.DataSource) (pgdb.DB, error) {
		if source.DSN == "refused" {
			return nil, errors.New("a wrong DSN")
		}
		p.connected = append(p.connected, source.DSN)
		return &silentDB{DataSource: source, process: p}, nil
	}
	return p
}

// silentDB is a DB with an unreachable server.
type silentDB struct {
	*host.DataSource
	process *process
	closed  atomic.Bool
}

func (d *silentDB) Run(context.Context, time.Duration, []*pgdb.Statement) error {
	if d.closed.Load() && d.HistoryOnly {
		d.process.t.Errorf("the history writes to %s after it was closed, want it closed before", d.DSN)
	}
	return pgdb.ErrConnectionLost
}

func (d *silentDB) Exec(ctx context.Context, timeout time.Duration, _ string) error {
	return d.Run(ctx, timeout, nil)
}

func (d *silentDB) Close() {
	d.process.closed = append(d.process.closed, d.DSN)
	d.closed.Store(true)
}

func source(dsn string) *host.DataSource {
	return &host.DataSource{Connection: settings.Connection{DSN: dsn}}
}

// start opens and prepares a handler with counters, a policy and a history on three databases, and adds a
// record to the history. "" leaves a policy or a history out.
func (p *process) start(counters, policy, recorded string) *host.Databases {
	p.t.Helper()
	sources := host.DataSources{Limits: *source(counters)}
	if policy != "" {
		sources.Policy = source(policy)
	}
	if recorded != "" {
		sources.History = source(recorded)
		sources.History.HistoryOnly = true
	}
	h, err := p.Open(&sources, timeout)
	if err != nil {
		p.t.Fatal(err)
	}
	h.Prepare()
	if h.History != nil {
		history.Add(h.History, &history.Record{Time: time.Now()})
	}
	return h
}

// expectClosed fails the test unless these databases have been closed, in this order, and n resources are
// open.
func (p *process) expectClosed(when, databases string, n int) {
	p.t.Helper()
	synctest.Wait()
	got := fmt.Sprintf("%s, %d open", strings.Join(p.closed, " "), len(p.Shared()))
	check.Equal(p.t, "databases closed "+when, got, fmt.Sprintf("%s, %d open", databases, n))
}

// Two handlers share a database, also with the handlers of the next load. It is closed when the last handler
// has been released for the delay and its timeout.
func TestDatabaseIsClosedAfterTheLastRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t)
		first, second := p.start("a", "", ""), p.start("a", "", "")
		other := *source("a")
		other.MaxConns = 3
		own, err := p.Open(&host.DataSources{Limits: other}, timeout)
		if err != nil || own.Limits == first.Limits {
			t.Fatalf("other settings: error %v, shared %t, want a database of its own", err,
				own.Limits == first.Limits)
		}
		own.End()
		first.Release()
		second.Release()
		third := p.start("a", "", "")
		time.Sleep(2 * (delay + timeout))
		p.expectClosed("after a reload", "a", 1)
		if first.Limits != second.Limits || second.Limits != third.Limits || len(p.connected) != 2 {
			t.Errorf("connections to %v, want two, one of which these handlers share", p.connected)
		}
		third.Release()
		time.Sleep(delay + timeout - time.Nanosecond)
		p.expectClosed("before the delay", "a", 1)
		time.Sleep(time.Nanosecond)
		p.expectClosed("after the delay", "a a", 0)
	})
}

// A history and a policy are closed before their databases, and the counters last. What another handler
// shares stays open.
func TestResourcesAreClosedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t)
		all, some := p.start("counters", "policy", "history"), p.start("counters", "policy", "")
		time.Sleep(time.Minute)
		p.expectClosed("in a minute", "", 5)
		all.End()
		p.expectClosed("with the first handler", "history", 3)
		some.End()
		p.expectClosed("with the last handler", "history policy counters", 0)
		p.start("counters", "counters", "").End()
		p.expectClosed("once more", "history policy counters counters", 0)
	})
}

// A handler with a database, a policy or a history that cannot be opened leaves none of its resources open,
// and those of other handlers open.
func TestFailedOpenLeavesNothingOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(t)
		h := p.start("a", "", "")
		for _, sources := range []host.DataSources{
			{Limits: *source("refused")},
			{Limits: *source("a"), Policy: source("refused")},
			{Limits: *source("b"), History: source("refused")},
			{Limits: *source("a"), Policy: source("a"), History: source("refused")},
		} {
			if _, err := p.Open(&sources, timeout); err == nil {
				t.Errorf("Open(%+v): got no error, want one", sources)
			}
		}
		p.expectClosed("by failed handlers", "b", 1)
		h.End()
		p.expectClosed("with the last handler", "b a", 0)
	})
}
