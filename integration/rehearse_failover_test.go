//go:build rehearse

package integration

import (
	"slices"
	"strings"
	"time"
)

// server returns the DSN of the server with the port in a variable, PGPORT or STANDBY_PORT.
func (r *rehearsal) server(port string) string {
	return "postgres://postgres@127.0.0.1:" + r.variable(port) + "/postgres?sslmode=disable"
}

// variable returns the value of an environment variable of the commands.
func (r *rehearsal) variable(name string) string {
	for _, v := range slices.Backward(r.env) { // the last one counts
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	r.t.Fatalf("no variable %s", name)
	return ""
}

// replicateSynchronously sets up the standby of the page.
func (r *rehearsal) replicateSynchronously() {
	r.t.Helper()
	r.page("Replicate", 0)
	r.page("Replicate", 1)
	r.awaitDecisions()
	await(r.t, "the standby to be synchronous", func() bool {
		return r.number("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1
	})
}

// loseThePrimary kills the primary.
func (r *rehearsal) loseThePrimary() {
	r.t.Helper()
	r.sh("the loss of the primary", `kill -9 $(head -1 "$PGDATA/postmaster.pid")`)
	time.Sleep(500 * time.Millisecond)
}

// decidedWithin waits until both proxies decide, and fails the test if that is later than limit after since.
func (r *rehearsal) decidedWithin(what string, since time.Time, limit time.Duration) {
	r.t.Helper()
	late := lateness()
	r.awaitDecisions()
	took := time.Since(since)
	if busy := late(); took > limit+4*busy {
		r.t.Errorf("the proxies decided %v after %s, want %v at most on a machine that is %v late", took,
			what, limit, busy)
	} else {
		r.t.Logf("the proxies decided %v after %s", took, what)
	}
}
