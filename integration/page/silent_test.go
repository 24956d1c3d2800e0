package page

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// watchAge is JavaScript for a page. It sets window.oldAt to the time at which the page first shows its
// values as old, and window.stall to the longest time for which the timers of the page did not run.
const watchAge = `window.oldAt = 0
	new MutationObserver(() => {
		if (document.body.classList.contains('old')) window.oldAt ||= Date.now()
	}).observe(document.body, {attributes: true})
	window.stall = 0
	let last = Date.now()
	setInterval(() => { window.stall = Math.max(window.stall, Date.now() - last); last = Date.now() }, 10)
	0`

// If the database or the page's own server does not answer, the page says so, and shows the last values as
// old. If the database or the server is paused, so that connections stay open, the page does so within two
// seconds. When answers come again, the page becomes current by itself.
func TestThePageSaysThatNothingAnswers(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 30 s")
	}
	database := cluster.Private(t, cluster.Options{})
	s := startSite(t, database.DSN("postgres"))
	signal := func(sig syscall.Signal) func() error {
		return func() error { return syscall.Kill(s.pagePID, sig) }
	}
	s.send(12, s.ann, "192.0.2.1", "/reports")
	b := open(t, s.page, desktop)
	b.await("#lists", "ann")
	b.fill("#why-who", "ann")
	value[int](b, watchAge)
	var late *tab
	for _, silent := range []struct {
		name, text   string
		stop, resume func() error
		within       time.Duration
	}{
		{name: "the database", text: "database does not answer", stop: database.Pause,
			resume: database.Resume, within: 2 * time.Second},
		{name: "the database, again", text: "database does not answer", stop: database.Pause,
			resume: database.Resume, within: 2 * time.Second},
		{name: "the server", text: "There is no answer", stop: signal(syscall.SIGSTOP),
			resume: signal(syscall.SIGCONT), within: 2 * time.Second},
		{name: "the killed database", text: "database does not answer", stop: database.Kill,
			resume: func() error { return database.Restart(t.Context()) }, within: awaitTimeout},
	} {
		b.await("#state", "enforced by 1 of 1 proxy")
		b.ask()
		b.await("#why-said", "rule/free")
		value[int](b, "window.oldAt = 0, window.stall = 0")
		start := time.Now()
		if err := silent.stop(); err != nil {
			t.Fatal(err)
		}
		b.await("#state", silent.text)
		b.await("#state-more", "What is below is of ")
		b.await("#lists", "ann")
		if silent.name == "the database" {
			late = openDuringOutage(t, s.page)
		}
		took := time.UnixMilli(int64(value[float64](b, "window.oldAt"))).Sub(start)
		stall := time.Duration(value[float64](b, "window.stall")) * time.Millisecond
		t.Logf("%s: shown after %v; timers stalled for %v", silent.name, took, stall)
		if took > silent.within+2*stall {
			t.Errorf("%s is silent: the page says so after %v, want %v at most", silent.name, took,
				silent.within)
		}
		if err := silent.resume(); err != nil {
			t.Fatal(err)
		}
	}
	b.await("#state", "enforced by 1 of 1 proxy")
	if value[bool](b, "document.body.classList.contains('old')") {
		t.Error("the values are shown as old, want as current")
	}
	late.await("#state", "enforced by 1 of 1 proxy")
	late.allowProblem("503")
	b.allowProblem("503") // Chromium's own lines about the responses
}

// openDuringOutage opens the page while its database does not answer. The page says so once, and if its
// server still has values, the page says from when they are.
func openDuringOutage(t *testing.T, address string) *tab {
	t.Helper()
	b := open(t, address, desktop)
	b.await("#state", "database does not answer")
	notes := value[int](b, `new Promise((found) => {
		const start = Date.now()
		setInterval(() => {
			const values = document.querySelector('#lists li')
			const dated = document.querySelector('#state-more').textContent.includes('What is below is of ')
			const notes = document.querySelectorAll('.away').length
			if (values && dated && !notes || Date.now() - start > 5000)
				found(notes + (values && !dated ? 100 : 0))
		}, 50)
	})`)
	if notes != 0 {
		t.Errorf("opened during an outage, the page has %d more notes (100: values without their time), "+
			"want 0", notes)
	}
	return b
}

// The page does not say that nobody was refused if it counts a refusal that the audit log lacks.
func TestThePageDeniesNoRefusalThatItCounts(t *testing.T) {
	dsn := cluster.Open(t, schema.File, `SELECT rate_limit_upkeep();
		INSERT INTO rate_limit_metrics (granularity, time, requests, limited, last_request)
			VALUES ('minute', date_trunc('minute', now()), 1, 1, now())`)
	b := openPage(t, dsn, dsn)
	b.await("#lines", "1 in 1 h")
	b.await("#lists", "the audit log has no refusal of this hour yet")
}

// openPage starts a Caddy that serves only the page, and opens the page. dsn is the database of the counters
// and the policy, and history the database of the history.
func openPage(t *testing.T, dsn, history string) *tab {
	t.Helper()
	address := harness.FreeAddress(t)
	harness.RunCaddy(t, "the page", harness.Caddy(t, "../.."), address, fmt.Sprintf(`{
	admin off
	persist_config off
}

http://%s {
	bind 127.0.0.1
	pg_ratelimit_page {
		dsn %q
		history %q
		insecure
	}
}
`, address, dsn, history))
	return open(t, "http://"+address+"/", desktop)
}

// If the history has its own server, which does not answer, the lists of the history say so, and the other
// lists stay current. When the server answers again, the lists become current.
func TestOnlyTheListsOfASilentServerAreOld(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 s")
	}
	s := startSite(t, cluster.Open(t))
	other := cluster.Private(t, cluster.Options{})
	cluster.Execute(t, other.DSN("postgres"), schema.File)
	b := openPage(t, s.dsn, other.DSN("postgres"))
	b.await("#lists", "Nobody")
	if err := other.Pause(); err != nil {
		t.Fatal(err)
	}
	for _, list := range []string{"#lists", "#lines"} {
		b.await(list, "The database")
		b.await(list, "what is below is of")
	}
	b.await("#state", "enforced by 1 of 1 proxy")
	b.await("#changes", "rule free: created")
	for _, found := range b.auditAccessibility() {
		t.Error(found)
	}
	if err := other.Resume(); err != nil {
		t.Fatal(err)
	}
	value[int](b, `new Promise((found) =>
		setInterval(() => document.querySelector('.away') || found(1), 50))`)
	b.allowProblem("503") // Chromium's own lines about the responses
}

// The page says that a database lacks the tables, even if they were dropped, and shows the values of the
// tables once they exist.
func TestThePageSaysThatTablesAreMissing(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 20 s")
	}
	dsn := cluster.Open(t)
	b := openPage(t, dsn, dsn)
	for range 2 {
		b.await("#state", "lacks the tables")
		b.await("#lists", "has no history")
		cluster.Execute(t, dsn, schema.File)
		b.await("#state", "No proxy counts in this database")
		b.await("#lists", "Nobody")
		cluster.Execute(t, dsn, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
	}
	b.allowProblem("503") // before the database has answered, and while the tables change
	b.allowProblem("422") // in the middle of the change
}
