//go:build rehearse

package integration

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	within "github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// load sends requests to a path of both proxies until the function that it returns is called.
func (r *rehearsal) load(path, key string, every time.Duration) (stop func() *harness.Result) {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan *harness.Result, 1)
	go func() {
		done <- harness.Run(ctx, harness.Load{Clients: 8, Every: every, Request: func(i int) *http.Request {
			return harness.Get(r.urls[i%2]+path, "X-Key", key)
		}})
	}()
	return func() *harness.Result {
		cancel()
		result := <-done
		if err := result.Err(); err != nil {
			r.t.Error(err)
		}
		return result
	}
}

// admittedOf returns the number of admitted requests. A request without a decision counts as none.
func admittedOf(result *harness.Result) int64 { return int64(result.Status[http.StatusOK]) }

// server is the DSN of one of both servers.
func (r *rehearsal) server(port string) string {
	return "postgres://postgres@127.0.0.1:" + r.variable(port) + "/postgres?sslmode=disable"
}

// variable is a variable of the commands.
func (r *rehearsal) variable(name string) string {
	for _, v := range slices.Backward(r.env) { // the last one counts
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	r.t.Fatalf("no variable %s", name)
	return ""
}

// replicateSynchronously makes a standby, as the page says.
func (r *rehearsal) replicateSynchronously() {
	r.t.Helper()
	r.page("Replicate", 0)
	r.page("Replicate", 1)
	r.decided()
	await(r.t, "the standby to be synchronous", func() bool {
		return r.number("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1
	})
}

// loseThePrimary kills it. walSender is a process that has been stopped, or "".
func (r *rehearsal) loseThePrimary(walSender string) {
	r.t.Helper()
	r.sh("the loss of the primary", `kill -9 $(head -1 "$PGDATA/postmaster.pid") `+walSender)
	time.Sleep(500 * time.Millisecond)
}

// decidedWithin waits until both proxies decide, at most until patience has passed since a time.
func (r *rehearsal) decidedWithin(what string, since time.Time, patience time.Duration) {
	r.t.Helper()
	late := within.Lateness()
	r.decided()
	took := time.Since(since)
	if busy := late(); took > patience+4*busy {
		r.t.Errorf("the proxies decided %v after %s, want %v at most on a machine that is %v late", took,
			what, patience, busy)
	} else {
		r.t.Logf("the proxies decided %v after %s", took, what)
	}
}

// rehearseFailovers kills the primary under load, and promotes a standby that lacks little, or the last five
// seconds. rehearseRestoreAndFailover promotes a synchronous one. No key gets more than its quota of what the
// new primary remembers.
func rehearseFailovers(t *testing.T) {
	const late = 5 * time.Second
	for _, c := range []struct {
		name     string
		receives bool // the standby gets its log late
		returns  bool // the old primary is started as it is
	}{
		{name: "asynchronous, and the old primary is started as it is", returns: true},
		{name: "the standby gets its log 5 s late", receives: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRehearsal(t)
			r.proxies()
			r.decided()
			r.page("Replicate", 0)
			r.sh("a standby that is away while the primary removes old log",
				`pg_ctl stop -m fast -D "$STANDBY"
for i in 1 2 3; do psql -c "SELECT pg_switch_wal()" -c CHECKPOINT; done
pg_ctl start -w -D "$STANDBY" -l "$STANDBY/../log-standby"`)
			r.decided()
			await(t, "the standby", func() bool {
				return r.number("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == 1
			})
			stop := r.load("/", "k", 10*time.Millisecond)
			time.Sleep(time.Second)
			early := admittedOf(stop())
			await(t, "the standby to have that", func() bool {
				return r.number("SELECT count(*) FROM pg_stat_replication WHERE flush_lsn >= "+
					"pg_current_wal_flush_lsn()") == 1
			})
			walSender := ""
			if c.receives {
				walSender = fmt.Sprint(r.number("SELECT pid FROM pg_stat_replication"))
				r.sh("a standby that gets nothing", "kill -STOP "+walSender)
			}
			stop, stopShort := r.load("/", "k", 20*time.Millisecond),
				r.load("/short", "k", 20*time.Millisecond)
			time.Sleep(time.Second)
			if c.receives {
				time.Sleep(late - time.Second)
			}
			r.loseThePrimary(walSender)
			recent, short := admittedOf(stop()), admittedOf(stopShort())
			r.page("Fail over", 0)
			r.decidedWithin("the promotion", time.Now(), 2*time.Second)
			within.Pause(time.Second) // within which proxies notice

			counted := cluster.Query[int64](t, r.server("STANDBY_PORT"), rehearsedCount+" AND key = 'k'")
			t.Logf("%d were admitted early and %d later; the new primary has %d", early, recent, counted)
			switch {
			case counted < early:
				t.Errorf("the new primary has %d of the %d that it had got", counted, early)
			case c.receives && counted >= early+recent:
				t.Errorf("the standby lacks nothing: %d of %d", counted, early+recent)
			}
			if n := r.ask("/", rehearsedQuota+500, "k"); n > rehearsedQuota-counted {
				t.Errorf("%d were admitted after the failover, and %d are counted before it: more than %d", n,
					counted, rehearsedQuota)
			}
			if n := r.ask("/short", rehearsedShort+100, "k"); short > rehearsedShort || n > rehearsedShort {
				t.Errorf("%d were admitted of the limit that is not durable, and %d after the failover, "+
					"want %d at most each time", short, n, rehearsedShort)
			}
			if c.returns {
				r.oldPrimaryReturns()
			}
		})
	}
}

// oldPrimaryReturns starts the old primary as it is, which the page forbids. It is the first server in the
// DSN, and the proxies connect anew again and again: they write nothing to it.
func (r *rehearsal) oldPrimaryReturns() {
	r.t.Helper()
	r.sh("the old primary", `pg_ctl start -w -l "$PGDATA/../log"`)
	before, admitted := time.Now(), int64(0)
	for range 5 {
		cluster.Query[int64](r.t, r.server("STANDBY_PORT"), "SELECT count(pg_terminate_backend(pid)) FROM "+
			"pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
		r.decided()
		admitted += r.ask("/", 40, "returned")
		admitted += r.ask("/", rehearsedQuota/2, "returned too")
	}
	if admitted > 5*40+rehearsedQuota {
		r.t.Errorf("%d were admitted while there were two primaries", admitted)
	}
	old := r.server("PGPORT")
	if n := cluster.Query[int64](r.t, old,
		"SELECT count(*) FROM rate_limit_durable WHERE key LIKE 'returned%'"); n > 0 {
		r.t.Errorf("the old primary has %d new rows of counters", n)
	}
	if n := cluster.Query[int64](r.t, old,
		fmt.Sprintf("SELECT count(*) FROM rate_limit_nodes WHERE seen > to_timestamp(%d)",
			before.Unix()+1)); n > 0 {
		r.t.Errorf("%d proxies are registered at the old primary", n)
	}
	r.sh("the end of the old primary", "pg_ctl stop -m fast")
}
