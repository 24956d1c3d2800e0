package command_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// receiver is a server that receives notices, at a URL that is a secret.
type receiver struct {
	*shell
	file string // contains the URL

	mu     sync.Mutex // guards the fields below
	bodies []string
	ids    []string // the values of Idempotency-Key
	answer func(w http.ResponseWriter, body string)
}

// secretPath is the path of the URL of a receiver.
const secretPath = "/T0/5ecr3t"

// newReceiver starts a receiver beside a database with notices for each of keys.
func newReceiver(t *testing.T, keys ...string) *receiver {
	r := &receiver{shell: newShell(t, schema.File), answer: func(http.ResponseWriter, string) {}}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.file = r.write(server.URL+secretPath+"\n", 0o600)
	for _, key := range keys {
		r.sql("INSERT INTO rate_limit_notices (rule, limit_name, key, period, percent, used, quota, " +
			"resets_at, currency) VALUES ('org', 'budget', '" + strings.ReplaceAll(key, "'", "''") +
			"', '2026-11-01Z', 80, 8.5, 10, '2026-12-01Z', 'EUR')")
	}
	return r
}

// write returns a new file with a text and a mode.
func (r *receiver) write(text string, mode os.FileMode) string {
	r.t.Helper()
	file := filepath.Join(r.t.TempDir(), "url")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Chmod(file, mode); err != nil {
		r.t.Fatal(err)
	}
	return file
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, _ := io.ReadAll(request.Body)
	r.mu.Lock()
	if request.URL.Path != secretPath || request.Method != http.MethodPost {
		body = []byte(request.Method + " " + request.URL.Path)
	}
	r.bodies = append(r.bodies, string(body))
	r.ids = append(r.ids, request.Header.Get("Idempotency-Key"))
	answer := r.answer
	r.mu.Unlock()
	answer(w, string(body))
}

// deliver runs the command, and returns what it prints.
func (r *receiver) deliver(args ...string) string {
	r.t.Helper()
	out := r.run(append([]string{"notices", "deliver", "--to", r.file}, args...)...)
	text := regexp.MustCompile(`  +`).ReplaceAllString(out.stdout, "  ")
	if out.err != nil {
		text += "error: " + out.err.Error()
	}
	if strings.Contains(text+out.stderr, "5ecr3t") {
		r.t.Errorf("the command prints the URL: %s%s", text, out.stderr)
	}
	return text
}

// expect fails the test unless the command prints all of texts.
func (r *receiver) expect(got string, texts ...string) {
	r.t.Helper()
	for _, text := range texts {
		if !strings.Contains(got, text) {
			r.t.Errorf("the command prints %s\nwant %q in it", got, text)
		}
	}
}

// again makes all notices due that wait.
func (r *receiver) again() {
	r.sql("UPDATE rate_limit_notices SET try_at = '-infinity' WHERE try_at < 'infinity'")
}

// Each notice is delivered once, with its names as they are. For Slack they are escaped, and short.
func TestNoticeIsDeliveredOnce(t *testing.T) {
	names := []string{"a\"b'\n<!channel>&", strings.Repeat("<", 2500)}
	r := newReceiver(t, names...)
	r.sql("INSERT INTO rate_limit_notices (rule, limit_name, key, period, percent, used, quota, void_at) " +
		"VALUES ('org', 'budget', 'void', now(), 80, 8, 10, now())")
	r.expect(r.deliver(), "RULE  LIMIT NAME", "80  delivered")
	var got []string
	for i, body := range r.bodies {
		var n struct{ ID, Key, ResetsAt string }
		if err := json.Unmarshal([]byte(body), &n); err != nil || n.ID != r.ids[i] || len(n.ID) != 36 {
			t.Errorf("the body is %s, error %v; want the id %s", body, err, r.ids[i])
		}
		got = append(got, n.Key)
		r.expect(body, `"rule" : "org", "limit_name" : "budget"`,
			`"percent" : 80, "used" : 8.5, "quota" : 10, "currency" : "EUR"`)
	}
	slices.Sort(got)
	slices.Sort(names)
	check.Equal(t, "the keys", fmt.Sprintf("%q", got), fmt.Sprintf("%q", names))
	check.Equal(t, "the next run", r.deliver(), "No notice is due.\n")
	check.Equal(t, "the notices that are left", cluster.Query[string](t, r.dsn,
		"SELECT string_agg(key, ' ') FROM rate_limit_notices WHERE taken_at IS NULL"), "void")

	r.sql("UPDATE rate_limit_notices SET taken_at = NULL, resets_at = 'infinity' WHERE key LIKE '<%'; " +
		"UPDATE rate_limit_notices SET taken_at = NULL")
	r.bodies = nil
	r.expect(r.deliver("--format", "slack"), "delivered")
	slices.Sort(r.bodies)
	check.Equal(t, "the texts", strings.Join(r.bodies, ""), `{"mrkdwn":false,"text":"org/budget of `+
		strings.Repeat("&lt;", 199)+`…: 80 % reached, 8.5 of 10 EUR used"}`+"\n"+
		`{"mrkdwn":false,"text":"org/budget of a\"b' &lt;!channel&gt;&amp;: 80 % reached, 8.5 of 10 EUR `+
		`used, resets at 2026-12-01 00:00:00Z"}`+"\n")
}

// A notice that the receiver does not take is tried again with the same idempotency key, later each time, and
// has failed after a day. It holds up no other one, and redirects are not followed.
func TestNoticeThatFailsIsTriedAgainForADay(t *testing.T) {
	r := newReceiver(t, "bad", "good")
	status := http.StatusInternalServerError
	r.answer = func(w http.ResponseWriter, body string) {
		if strings.Contains(body, `"bad"`) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
		}
	}
	// pause compares the time of the next try with the times between which the command has run.
	pause := func(want string, run func()) {
		t.Helper()
		const now = "SELECT clock_timestamp()"
		from := cluster.Query[time.Time](t, r.dsn, now)
		run()
		until := cluster.Query[time.Time](t, r.dsn, now)
		next := cluster.Query[time.Time](t, r.dsn, "SELECT try_at FROM rate_limit_notices WHERE key = 'bad'")
		wait, _ := time.ParseDuration(want)
		if next.Before(from.Add(wait)) || next.After(until.Add(wait+until.Sub(from))) {
			t.Errorf("the next try is at %v, want %v after %v", next, want, from)
		}
	}
	pause("10s", func() {
		r.expect(r.deliver(), "good  80  delivered", "bad  80  again at", "status 500",
			"error: 1 of 2 notices")
	})
	r.sql("UPDATE rate_limit_notices SET try_at = try_at + interval '1 h'") // the test may be slow
	check.Equal(t, "the next run", r.deliver(), "No notice is due.\n")
	status = http.StatusTemporaryRedirect
	for ago, want := range map[string]string{"80s": "80s", "5h": "1h"} {
		r.again()
		pause(want, func() {
			r.sql("UPDATE rate_limit_notices SET tried_at = now() - interval '" + ago + "'")
			r.expect(r.deliver(), "status 307")
		})
	}
	r.expect(r.mustRun("notices"), "waiting  status 307", "taken    -")
	r.again()
	r.sql("UPDATE rate_limit_notices SET tried_at = now() - interval '1 day'")
	r.expect(r.deliver(), "bad  80  failed: status 307")
	r.again()
	check.Equal(t, "after a day", r.deliver(), "No notice is due.\n")
	r.expect(r.mustRun("notices"), "failed  status 307")
	status = http.StatusAccepted
	r.sql("UPDATE rate_limit_notices SET try_at = '-infinity'")
	r.expect(r.deliver(), "delivered")
	ids := map[string]bool{}
	for i, body := range r.bodies {
		if strings.Contains(body, `"bad"`) {
			ids[r.ids[i]] = true
		} else if !strings.Contains(body, `"good"`) {
			t.Errorf("the receiver got %s", body)
		}
	}
	check.Equal(t, "the idempotency keys of a notice", len(ids), 1)
}

// Two processes send each notice once. Meanwhile neither the search for notices nor a new one waits, and a
// signal ends a process after the notice that it sends.
func TestTwoProcessesSendEachNoticeOnce(t *testing.T) {
	r := newReceiver(t, "ann", "bob")
	both, answered := make(chan bool, 3), make(chan bool)
	r.answer = func(http.ResponseWriter, string) {
		both <- true
		<-answered
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan string, 2)
	for range 2 {
		root := r.root("pg-ratelimit", "--dsn", r.dsn, "--json",
			"notices", "deliver", "--follow", "--format", "json", "--to", r.file)
		var out bytes.Buffer
		root.SetOut(&out)
		go func() {
			err := root.ExecuteContext(ctx)
			ended <- fmt.Sprint(out.String(), err)
		}()
	}
	<-both
	<-both
	r.sql(`SET lock_timeout = '3s'; SELECT rate_limit_rule('org', limits => '{budget=10 money/1mo calendar}',
			notify => '{80}');
		SELECT rate_limit_notice_upkeep();
		UPDATE rate_limit_ledger_retention SET keep = '1 day'; SELECT rate_limit_ledger_upkeep();
		INSERT INTO rate_limit_notices (rule, limit_name, key, period, percent, used, quota)
			SELECT rule, limit_name, key, period, percent, used, quota FROM rate_limit_notices
			ON CONFLICT DO NOTHING`)
	cancel()
	close(answered)
	for range 2 {
		if out := <-ended; !strings.HasSuffix(out, `"percent":80,"result":"delivered"}`+"\n<nil>") {
			t.Errorf("the command ended with %s", out)
		}
	}
	check.Equal(t, "the POSTs", len(r.bodies), 2)
	check.Equal(t, "the notices that are delivered", cluster.Query[int64](t, r.dsn,
		"SELECT count(*) FROM rate_limit_notices WHERE taken_at IS NOT NULL"), 2)
}

// A notice whose process dies between the response and COMMIT is sent again, with the same idempotency key.
func TestNoticeOfAKilledProcessIsSentAgain(t *testing.T) {
	r := newReceiver(t, "ann")
	dsn := r.dsn
	r.dsn += "&application_name=killed"
	r.answer = func(http.ResponseWriter, string) {
		cluster.Query[bool](t, dsn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "+
			"WHERE application_name = 'killed' AND datname = current_database()")
		for cluster.Query[bool](t, dsn, "SELECT EXISTS (SELECT FROM pg_stat_activity "+
			"WHERE application_name = 'killed' AND datname = current_database())") {
		}
	}
	r.expect(r.deliver(), "error: ")
	r.answer = func(http.ResponseWriter, string) {}
	r.expect(r.deliver(), "ann  80  delivered")
	check.Equal(t, "the next run", r.deliver(), "No notice is due.\n")
	if len(r.ids) != 2 || r.ids[0] != r.ids[1] || r.bodies[0] != r.bodies[1] {
		t.Errorf("the receiver got %q with the keys %q, want one notice twice", r.bodies, r.ids)
	}
}

// The URL is only in a file that others cannot read, and no error has it. Who cannot note what was delivered
// sends nothing.
func TestDeliverRefusesBeforeItSends(t *testing.T) {
	r := newReceiver(t, "ann")
	good := r.file
	for file, want := range map[string]string{
		"https://example.com" + secretPath:                          "--to: must be a file that contains",
		r.t.TempDir():                                               "must be a regular file",
		r.write("https://example.com"+secretPath, 0o604):            "has the mode 0604, must be for its",
		r.write("example.com"+secretPath, 0o600):                    "must contain one URL",
		r.write("ftp://example.com"+secretPath, 0o600):              "must contain one URL",
		r.write("https://a.com/x\nhttps://a.com"+secretPath, 0o600): "must contain one URL",
		r.write("https://a.com/x https://a.com"+secretPath, 0o600):  "must contain one URL",
		r.write("", 0o440):                                          "must contain one URL",
		r.write("http://127.0.0.1:1"+secretPath+"?x=1", 0o640):      "the host: connect: connection refused",
	} {
		r.file = file
		r.expect(r.deliver(), want)
	}
	r.again()
	r.file = good
	r.expect(r.deliver("--format", "xml"), `--format: "xml": must be json or slack`)
	role := r.newRole()
	r.sql("SELECT rate_limit_grant('" + role + "', 'reader')")
	dsn := r.dsn
	r.shell = r.asRole(role)
	r.expect(r.deliver(), "error: the role", "may not do this")
	r.shell = &shell{t: t, dsn: dsn + "&options=-c%20default_transaction_read_only%3Don"}
	r.expect(r.deliver(), "error: the server is read-only", "use the primary")
	check.Equal(t, "the POSTs", len(r.bodies), 0)
	r.shell = &shell{t: t, dsn: dsn}
	for _, rights := range []string{
		"GRANT SELECT, UPDATE (taken_at, tried_at, try_at, error) ON rate_limit_notices TO " + role,
		"SELECT rate_limit_grant('" + role + "', 'administrator')",
	} {
		r.sql("UPDATE rate_limit_notices SET taken_at = NULL; DROP OWNED BY " + role + "; " + rights)
		r.shell = r.asRole(role)
		r.expect(r.deliver(), "delivered")
		r.shell = &shell{t: t, dsn: dsn}
	}
}

// After three notices without a response, the others wait for the next run, as old as they are. A single one
// holds up no other one.
func TestNoticesWaitWhileNobodyAnswers(t *testing.T) {
	r := newReceiver(t, "ann", "bob", "cat", "dan", "eve", "fay", "guy")
	good := r.file
	r.file = r.write("http://127.0.0.1:1"+secretPath, 0o600)
	for range 2 {
		r.expect(r.deliver(), "connection refused", "error: 3 of 3 notices")
	}
	check.Equal(t, "the notices that were tried", cluster.Query[int64](t, r.dsn,
		"SELECT count(tried_at) FROM rate_limit_notices"), 6)
	r.file = good
	r.again()
	r.answer = func(_ http.ResponseWriter, body string) {
		if strings.Contains(body, `"bob"`) {
			panic(http.ErrAbortHandler)
		}
	}
	r.expect(r.deliver(), "ann  80  delivered", "guy  80  delivered", "error: 1 of 7 notices")
}

// A receiver that does not answer within 10 seconds has not taken the notice. A signal waits for it for 5.
func TestReceiverThatHangsTakesNoNotice(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 s")
	}
	r := newReceiver(t, "ann")
	done := make(chan bool)
	t.Cleanup(func() { close(done) })
	signal := func() {}
	r.answer = func(w http.ResponseWriter, _ string) {
		w.Header().Set("X", "y")
		signal()
		select {
		case <-done:
		case <-time.After(time.Minute):
		}
	}
	r.expect(r.deliver(), "again at", "no response within 10s")
	r.again()
	root := r.root("pg-ratelimit", "--dsn", r.dsn, "notices", "deliver", "--follow", "--to", r.file)
	var out bytes.Buffer
	root.SetOut(&out)
	ctx, cancel := context.WithCancel(t.Context())
	r.mu.Lock()
	signal = cancel
	r.mu.Unlock()
	if err := root.ExecuteContext(ctx); err != nil {
		t.Error(err)
	}
	r.expect(out.String(), "no response before the command ended")
}
