package conformance

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// testReplacedPrimary checks that a DB with two hosts refuses a server on an earlier timeline than the latest
// that the DB has read, because another server has replaced that one as primary. A DB with one host uses its
// server on any timeline. In this test, both hosts are one server, and functions in its database fake the
// timeline.
func testReplacedPrimary(t *testing.T, open openDB) {
	dsn := cluster.Open(t)
	admin := open.connect(t, dsn)
	admin.exec(`CREATE TABLE timeline (system bigint, timeline text); INSERT INTO timeline
		VALUES (70, '00000009');
		CREATE SCHEMA fake;
		CREATE FUNCTION fake.pg_control_system(OUT system_identifier bigint) LANGUAGE sql
		AS 'SELECT system FROM public.timeline';
		CREATE FUNCTION fake.pg_walfile_name(pg_lsn) RETURNS text LANGUAGE sql
		AS 'SELECT timeline || ''0000000000000001'' FROM public.timeline'`)
	u, err := url.Parse(WithSettings(t, dsn, "target_session_attrs", "read-write", "search_path",
		"fake,pg_catalog,public"))
	if err != nil {
		t.Fatal(err)
	}
	oneHost := open.connect(t, u.String())
	u.Host = u.Host + ",localhost:" + u.Port()
	twoHosts := open.connect(t, u.String())
	pid := twoHosts.process()

	for _, step := range []struct {
		system   int
		timeline string
		replaced bool
	}{
		{system: 70, timeline: "00000009"},
		{system: 70, timeline: "0000000A"},
		{system: 70, timeline: "00000009", replaced: true},
		{system: 70, timeline: "0000000A"},
		{system: 70, timeline: "0000000B"},
		{system: 70, timeline: "0000000A", replaced: true},
		{system: 71, timeline: "00000001"},
	} {
		admin.exec(fmt.Sprintf("UPDATE timeline SET system = %d, timeline = '%s'", step.system,
			step.timeline))
		admin.endSessions("true")
		oneHost.process()
		err := twoHosts.try(statement("SELECT 1"))
		for until := time.Now().Add(timeout); step.replaced != (err != nil) &&
			time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
			err = twoHosts.try(statement("SELECT 1"))
		}
		want := map[bool]string{true: "was replaced", false: "<nil>"}[step.replaced]
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("system %d on timeline %s: error %v, want %s", step.system, step.timeline, err, want)
		}
	}
	if now := twoHosts.process(); now == pid {
		t.Errorf("two hosts: a statement runs on process %x, want a new process", now)
	}

	// A call that is running on one connection completes, although another connection then detects that the
	// server was replaced. Later calls do not use the connection of that call.
	admin.exec("CREATE TABLE held AS SELECT")
	held := statement("SELECT pg_backend_pid()::bigint")
	done := make(chan error, 1)
	go func() {
		done <- twoHosts.try(held,
			statement("DO $$BEGIN WHILE EXISTS (SELECT FROM public.held) LOOP PERFORM pg_sleep(0.01); END "+
				"LOOP; END$$"))
	}()
	admin.awaitSessions("query LIKE 'DO %'", 1)
	admin.exec("UPDATE timeline SET timeline = '00000002'")
	// On a busy machine, a connection that read the earlier timeline may open only after the first round. The
	// second round ends that connection.
	for range 2 {
		admin.endSessions("query NOT LIKE 'DO %'")
		twoHosts.process()
	}
	admin.exec("DELETE FROM held")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if now := twoHosts.process(); now == cells(t, held)[0] {
		t.Errorf("a statement runs on process %x of the replaced server, want a new process", now)
	}
}
