package page

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// watchAge makes a page note when it begins to show its values as old, and the longest time for which its
// timers did not run.
const watchAge = `window.oldAt = 0
	new MutationObserver(() => {
		if (document.body.classList.contains('old')) window.oldAt ||= Date.now()
	}).observe(document.body, {attributes: true})
	window.stall = 0
	let last = Date.now()
	setInterval(() => { window.stall = Math.max(window.stall, Date.now() - last); last = Date.now() }, 10)
	0`

// Within two seconds, the page says that the database, or its own server, is silent, although connections to
// it stay open. It does so again soon after the first time.
func TestThePageSaysThatNothingAnswers(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 30 s")
	}
	database := cluster.Private(t, cluster.Options{})
	s := startSite(t, database.DSN("postgres"))
	signal := func(what syscall.Signal) func() error {
		return func() error { return syscall.Kill(s.pagePID, what) }
	}
	s.send(12, s.ann, "192.0.2.1", "/reports")
	b := open(t, s.page, desktop)
	b.await("#lists", "ann")
	value[int](b, watchAge)
	for _, silent := range []struct {
		what, says   string
		stop, resume func() error
	}{
		{"the database", "nothing came within", database.Pause, database.Resume},
		{"the database, again", "nothing came within", database.Pause, database.Resume},
		{"the server", "There is no answer", signal(syscall.SIGSTOP), signal(syscall.SIGCONT)},
	} {
		b.await("#state", "enforced by 1 of 1 proxy")
		value[int](b, "window.oldAt = 0, window.stall = 0")
		began := time.Now()
		if err := silent.stop(); err != nil {
			t.Fatal(err)
		}
		b.await("#state", silent.says)
		b.await("#state-more", "What is below is of ")
		b.await("#lists", "ann")
		said := time.UnixMilli(int64(value[float64](b, "window.oldAt"))).Sub(began)
		stall := time.Duration(value[float64](b, "window.stall")) * time.Millisecond
		t.Logf("%s: said after %v; timers stalled for %v", silent.what, said, stall)
		if said > 2*time.Second+2*stall {
			t.Errorf("%s is silent: the page says so after %v", silent.what, said)
		}
		if err := silent.resume(); err != nil {
			t.Fatal(err)
		}
	}
	b.await("#state", "enforced by 1 of 1 proxy")
	b.forgive("503") // Chromium's own lines about the answers
}

const pageOfTwoServers = `{
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
`

// If the history is in a server of its own that is silent, its lists say so, and the rest stays current.
func TestOnlyTheListsOfASilentServerAreOld(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 s")
	}
	s := startSite(t, cluster.Open(t))
	other := cluster.Private(t, cluster.Options{})
	cluster.Execute(t, other.DSN("postgres"), schema.File)
	address := harness.FreeAddress(t)
	file := fmt.Sprintf(pageOfTwoServers, address, s.dsn, other.DSN("postgres"))
	harness.RunCaddy(t, "the page", harness.Caddy(t, "../.."), file).AwaitAddress(t, address)
	b := open(t, "http://"+address+"/", desktop)
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
	for _, found := range b.axe() {
		t.Error(found)
	}
	if err := other.Resume(); err != nil {
		t.Fatal(err)
	}
	value[int](b, `new Promise((found) =>
		setInterval(() => document.querySelector('.away') || found(1), 50))`)
	b.forgive("503") // Chromium's own lines about the answers
}

// A page of a database without tables says so, even after they are dropped, and shows them when they are
// made.
func TestThePageOfADatabaseWithoutTables(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 20 s")
	}
	dsn := cluster.Open(t)
	address := harness.FreeAddress(t)
	file := fmt.Sprintf(pageOfTwoServers, address, dsn, dsn)
	harness.RunCaddy(t, "the page", harness.Caddy(t, "../.."), file).AwaitAddress(t, address)
	b := open(t, "http://"+address+"/", desktop)
	for range 2 {
		b.await("#state", "lacks the tables")
		b.await("#lists", "has no history")
		cluster.Execute(t, dsn, schema.File)
		b.await("#state", "No proxy counts in this database")
		b.await("#lists", "Nobody")
		cluster.Execute(t, dsn, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
	}
}
