package conformance

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// testReplacedPrimary: a DB with two hosts refuses a server on an earlier timeline than the latest that the
// DB has read, because another server has replaced that one as primary. A DB with one host uses its server on
// any timeline. In this test, both hosts are one server, and functions in its database fake the timeline.
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

// testChangedPassword: after the change of a password, a DB logs in with the new password as soon as the
// DSN's password file has it. Open connections stay in use.
func testChangedPassword(t *testing.T, open openDB) {
	server := cluster.Private(t,
		cluster.Options{HBA: "local all all trust\nhost all changing 127.0.0.1/32 scram-sha-256\nhost all " +
			"all 127.0.0.1/32 trust\n"})
	admin := open.connect(t, server.DSN("postgres"))
	passfile := filepath.Join(t.TempDir(), "passfile")
	change := func(password string) {
		t.Helper()
		if err := os.WriteFile(passfile, []byte("*:*:*:changing:"+password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	admin.exec("CREATE ROLE changing LOGIN PASSWORD 'first'")
	change("first")
	d := open.connect(t, fmt.Sprintf("host=127.0.0.1 port=%d user=changing dbname=postgres sslmode=disable "+
		"passfile=%s", server.Port(), passfile))
	d.queryCell("SELECT 1::bigint")
	admin.exec("ALTER ROLE changing PASSWORD 'second'")
	d.queryCell("SELECT 1::bigint") // uses the open connection
	admin.endSessions("usename = 'changing'")
	if err := d.try(statement("SELECT 1")); err == nil {
		t.Error("a new connection with the old password: no error, want one")
	}
	change("second")
	await.Within(t, timeout, "the new password is read from the file",
		func() bool { return d.try(statement("SELECT 1")) == nil })
}
