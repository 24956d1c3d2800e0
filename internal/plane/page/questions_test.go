package page_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/page"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// asked is a page on a database that a test fills.
type asked struct {
	*testing.T
	dsn  string
	conn *pgx.Conn
	api  http.Handler
}

func ask(t *testing.T) *asked {
	t.Helper()
	ctx := context.Background()
	dsn := cluster.Open(t, schema.File)
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(ctx) })
	return &asked{t, dsn, conn, serve(t, dsn)}
}

// serve returns the API of a page.
func serve(t *testing.T, dsn string) http.Handler {
	t.Helper()
	s, err := page.New(page.Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func (a *asked) exec(sql string, args ...any) {
	a.Helper()
	if _, err := a.conn.Exec(context.Background(), sql, args...); err != nil {
		a.Fatalf("%s: %v", sql, err)
	}
}

// day makes the partition of a day of the audit log.
func (a *asked) day(t time.Time) {
	a.Helper()
	day := t.UTC().Truncate(24 * time.Hour)
	a.exec("CREATE TABLE IF NOT EXISTS rate_limit_audit_" + day.Format("20060102") + " PARTITION OF rate_limit_audit FOR VALUES FROM ('" +
		day.Format(time.DateOnly) + "Z') TO ('" + day.AddDate(0, 0, 1).Format(time.DateOnly) + "Z')")
}

// decided writes a row of the audit log about ann.
func (a *asked) decided(at time.Time, decision string, count int) {
	a.Helper()
	a.day(at)
	a.exec(`INSERT INTO rate_limit_audit (time, decision, reason, prefix, key, user_id, cost, count, weight, quota, remaining, duration_us, node)
VALUES ($1, $2, CASE $2 WHEN 'error' THEN 'timeout' END, 'web', 'ann', 'ann', 1, $3, 1, 20, 0, 1, 'test')`, at, decision, count)
}

// answer asks a question, and reads the answer into a value.
func (a *asked) answer(name, body string, into any) {
	a.Helper()
	status, text := send(a.api, name, body)
	if err := json.Unmarshal([]byte(text), into); err != nil || status != http.StatusOK {
		a.Fatalf("%s %s: status %d, %v: %s", name, body, status, err, text)
	}
}

// send sends a GET, or a POST with a body.
func send(api http.Handler, name, body string) (status int, text string) {
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	r := httptest.NewRequest(method, "http://127.0.0.1/api/"+name, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	api.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// A rule is not blamed for what it refused before the time that the answer names: the metrics have full minutes.
func TestTheListsBeginWhenTheySay(t *testing.T) {
	a := ask(t)
	now := time.Now().UTC()
	minute := now.Truncate(time.Minute).Add(-3 * time.Minute)
	for i, refused := range []int{1000, 7} { // the rule was mended within the first minute
		a.exec(`INSERT INTO rate_limit_metrics (granularity, time, prefix, host, route, region, requests, allowed, limited) VALUES ('minute', $1, $2, '', '', '', $3::bigint, 5, $3::bigint - 5)`,
			minute.Add(time.Duration(i)*time.Minute), []string{"rule/search", "rule/pro"}[i], refused+5)
		a.decided(minute.Add(time.Duration(i)*time.Minute+10*time.Second), "limited", refused)
	}
	type list struct {
		From              *time.Time
		Requests, Refused int64
		Note              *string
		Rules, Keys       []struct {
			Name    string
			Refused int64
		}
	}
	var top list
	a.answer("top?since="+minute.Add(5*time.Second).Format(time.RFC3339), "", &top)
	if from := minute.Add(time.Minute); top.From == nil || !top.From.Equal(from) {
		t.Errorf("the answer begins at %v, want %v", top.From, from)
	}
	if top.Refused != 7 || top.Requests != 12 || len(top.Rules) != 1 || top.Rules[0].Name != "rule/pro" || len(top.Keys) != 1 || top.Keys[0].Refused != 7 {
		t.Errorf("%+v, want the refusals of the second minute", top)
	}
	// Within the first minute, it is the whole of it, and the answer says so.
	top = list{}
	a.answer("top?since="+time.Now().UTC().Format("2006-01-02T15:04:05.999999Z"), "", &top)
	if top.From == nil || top.From.Second() != 0 || top.Note == nil || !strings.Contains(*top.Note, "full minutes") {
		t.Errorf("within the first minute: %+v", top)
	}
}

func TestWhySaysWhatHappenedInTheMinute(t *testing.T) {
	a := ask(t)
	day := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, -1)
	at := func(clock string) time.Time {
		t.Helper()
		c, err := time.Parse("15:04:05", clock)
		if err != nil {
			t.Fatal(err)
		}
		return day.Add(c.Sub(c.Truncate(24 * time.Hour)))
	}
	for i := range 30 {
		a.decided(at("04:05:00").Add(time.Duration(i)*time.Second), "limited", 2)
	}
	a.decided(at("04:05:40"), "error", 3)
	a.decided(at("04:06:01"), "limited", 1)
	a.decided(at("04:26:10"), "error", 9)
	a.decided(at("04:27:10"), "allowed", 1)
	on := day.Format(time.DateOnly)
	for _, one := range []struct{ at, want string }{
		{"03:30", "ann was not refused at 03:30 UTC on " + on + ". The nearest minute with refusals: 60 times at 04:05 UTC on " + on + "."},
		{"04:05", "ann was refused 60 times at 04:05 UTC on " + on + ". Refused by the limit web: 20 of 20 were used. In the same minute 3 requests had no decision."},
		{"04:06", "ann was refused once at 04:06 UTC on " + on + ". Refused by"},
		{"04:26", "ann had no decision 9 times at 04:26 UTC on " + on + ". The last: No decision (timeout): it passed."},
		{"04:27", "ann was not refused at 04:27 UTC on " + on + ". The nearest minute with refusals: once at 04:06 UTC on " + on + "."},
		{"", "ann was refused once at 04:06 UTC on " + on + "."},
	} {
		asked := one.at
		if asked != "" {
			asked = on + " " + asked
		}
		var why struct {
			Summary string
			Found   bool
			Note    *string `json:"decisions_note"`
		}
		a.answer("why", `{"who": "ann", "at": "`+asked+`"}`, &why)
		if !strings.HasPrefix(why.Summary, one.want) || !why.Found {
			t.Errorf("at %q: %q, want %q", one.at, why.Summary, one.want)
		}
		// Requests that were allowed may be older or newer than the rows that are listed.
		if told := why.Note != nil && strings.Contains(*why.Note, "audit denied"); told != (one.at == "03:30") {
			t.Errorf("at %q the note is %v", one.at, why.Note)
		}
	}
}

// 20 refusals do not hide that the audit log has requests that passed.
func TestWhyDoesNotMistakeAllDecisionsForRefusals(t *testing.T) {
	a := ask(t)
	now := time.Now().UTC()
	a.decided(now.Add(-time.Hour), "allowed", 1)
	for i := range 20 {
		a.decided(now.Add(-time.Duration(i+1)*time.Second), "limited", 1)
	}
	var why struct {
		Decisions []any
		Note      *string `json:"decisions_note"`
	}
	a.answer("why", `{"who": "ann"}`, &why)
	if len(why.Decisions) != 20 || why.Note != nil {
		t.Errorf("%d decisions, and the note %q", len(why.Decisions), *why.Note)
	}
}

func TestWhyKnowsNoMinuteThatIsNotYet(t *testing.T) {
	a := ask(t)
	next := time.Now().UTC().Add(2 * time.Hour)
	if status, text := send(a.api, "why", `{"who": "ann", "at": "`+next.Format(time.RFC3339)+`"}`); status != http.StatusBadRequest || !strings.Contains(text, "in the past") {
		t.Errorf("status %d: %s", status, text)
	}
	before := next.AddDate(0, 0, -1)
	a.decided(before, "limited", 4)
	var why struct{ Summary string }
	a.answer("why", `{"who": "ann", "at": "`+next.Format("15:04")+`"}`, &why)
	want := "ann was refused 4 times at " + before.Format("15:04 UTC today.")
	if next.Day() == time.Now().UTC().Day() {
		want = next.Format("15:04 UTC") + " today is not yet. ann was refused 4 times at " + before.Format("15:04 UTC on 2006-01-02.")
	}
	if !strings.HasPrefix(why.Summary, want) {
		t.Errorf("%q, want %q", why.Summary, want)
	}
}

// The name may be a user, an API key, its number, or an address. The answer says which it was taken for, and an API key
// that the policy does not know would not pass.
func TestWhySaysWhatTheNameWasTakenFor(t *testing.T) {
	a := ask(t)
	a.exec("SELECT rate_limit_rule('pro', per_minute => 20)")
	a.exec("INSERT INTO rate_limit_tiers (tier) VALUES ('gold')")
	a.exec("INSERT INTO rate_limit_users (user_id, tier) VALUES ('acme', 'gold'), ('42', 'gold')")
	a.exec("INSERT INTO rate_limit_api_keys (id, user_id, digest) VALUES (7, 'acme', sha256('imported')), (42, 'acme', sha256('other'))")
	a.decided(time.Now().Add(-time.Hour), "limited", 1)
	for _, one := range []struct{ who, kind, taken, next string }{
		{"acme", "user", "a user", "pass"},
		{"imported", "key", "the API key #7 of acme", "pass"},
		{"7", "key_id", "the API key #7 of acme", "pass"},
		{"42", "user", "a user", "pass"},
		{"#42", "key_id", "the API key #42 of acme", "pass"},
		{"192.0.2.1", "address", "an address", "pass"},
		{"ann", "user", "a user, or the key of a limit, that the policy does not have", "pass"},
		{"bad", "unknown", "an API key that the policy does not know", "refused with status 401: unknown API key"},
		{"prl_bad", "key", "an API key that the policy does not know", "refused with status 401: unknown API key"},
	} {
		var why struct {
			Kind, Taken string
			Next        *struct{ Text string }
		}
		a.answer("why", `{"who": "`+one.who+`"}`, &why)
		if why.Kind != one.kind || !strings.HasPrefix(why.Taken, one.taken) || why.Next == nil || !strings.Contains(why.Next.Text, one.next) {
			t.Errorf("%s: %+v, %+v; want %+v", one.who, why, why.Next, one)
		}
	}
}

// A rule that was deleted is marked, and a 401 has its reason.
func TestRefusalsNameDeletedRulesAndReasons(t *testing.T) {
	a := ask(t)
	a.exec("SELECT rate_limit_rule('kept', per_minute => 20)")
	minute := time.Now().UTC().Truncate(time.Minute).Add(-3 * time.Minute)
	a.day(minute)
	for i, prefix := range []string{"rule/gone", "rule/kept", "web"} {
		a.exec(`INSERT INTO rate_limit_metrics (granularity, time, prefix, host, route, region, requests, allowed, limited) VALUES ('minute', $1, $2, '', '', '', $3, 0, $3)`, minute, prefix, 30-i)
		a.exec(`INSERT INTO rate_limit_audit (time, decision, prefix, limit_name, key, user_id, cost, count, weight, quota, remaining, duration_us, node)
VALUES ($1, 'limited', $2, 'l', 'ann', 'ann', 1, 1, 1, 20, 0, 1, 'test')`, minute.Add(time.Duration(i)*time.Second), prefix)
	}
	a.exec(`INSERT INTO rate_limit_audit (time, decision, reason, prefix, user_id, cost, count, weight, duration_us, node) VALUES ($1, 'rejected', 'key_expired', '', 'ann', 1, 40, 1, 1, 'test')`, minute)
	var top struct{ Rules []struct{ Text string } }
	a.answer("top?since="+minute.Format(time.RFC3339), "", &top)
	var shown []string
	for _, rule := range top.Rules {
		shown = append(shown, rule.Text)
	}
	if got, want := strings.Join(shown, "; "), "expired API key (401); rule gone (deleted); rule kept; limit web"; got != want {
		t.Errorf("the rules are %q, want %q", got, want)
	}
	var why struct{ Decisions []struct{ Text string } }
	a.answer("why", `{"who": "ann"}`, &why)
	shown = nil
	for _, d := range why.Decisions {
		text, _, _ := strings.Cut(d.Text, ":")
		shown = append(shown, text)
	}
	if got, want := strings.Join(shown, "; "), "Refused by the limit web; Refused by the limit kept/l; Refused by the limit gone/l (deleted); Refused"; got != want {
		t.Errorf("the decisions are %q, want %q", got, want)
	}
}

// Whoever is near a quota is known, with the time, also while the question waits for the counters.
func TestNearAnswersWithTheLastAnswer(t *testing.T) {
	a := ask(t)
	a.exec("SELECT rate_limit_rule('r', count_by => '{user}', per_minute => 10)")
	a.exec("INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at) VALUES ('rule/r/per_minute', 'acme', 9, now(), now() + interval '1 h')")
	var near struct {
		Looked   *time.Time
		Counters []struct{ Key string }
	}
	a.answer("near", "", &near)
	if near.Looked == nil || len(near.Counters) != 1 {
		t.Fatalf("%+v", near)
	}
	first := *near.Looked
	a.exec("BEGIN; LOCK TABLE rate_limit_ephemeral")
	waiting := func() string { // the statement that waits for the counters
		return cluster.Query[string](t, a.dsn, `SELECT coalesce(min(pid || ' since ' || query_start), '') FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	}
	await.Within(t, time.Minute, "an answer while a statement waits for the counters", func() bool {
		before := waiting()
		a.answer("near", "", &near)
		if near.Looked == nil || near.Looked.Before(first) || len(near.Counters) != 1 {
			t.Fatalf("%+v", near)
		}
		return before != "" && waiting() == before
	})
	a.exec("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") // as a timeout does
	await.Within(t, time.Minute, "the end of the statement", func() bool { return waiting() == "" })
	for range 20 {
		if a.answer("near", "", &near); len(near.Counters) != 1 {
			t.Fatalf("after a failure: %+v", near)
		}
	}
	a.exec("ROLLBACK")
}
