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

	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/page"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// asked is a page on a database that a test fills.
type asked struct {
	*testing.T
	conn *pgx.Conn
	api  http.Handler
}

func ask(t *testing.T) *asked {
	t.Helper()
	ctx := context.Background()
	dsn := cluster.Open(t)
	db, err := admin.Open(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if m, err := db.Migrate(ctx); err != nil {
		if m.Policy == "not possible" {
			t.Skip("the page of this test needs the policy, which needs Postgres 15")
		}
		t.Fatal(err)
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(ctx) })
	return &asked{t, conn, serve(t, dsn)}
}

// serve returns the API of a page that people may write with.
func serve(t *testing.T, dsn string) http.Handler {
	t.Helper()
	s, err := page.New(page.Options{DSN: dsn, Write: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s.API()
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
	r := httptest.NewRequest(method, "/"+name, strings.NewReader(body))
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

// Of a database that has never answered, nothing is claimed.
func TestThePageClaimsNothingOfADatabaseThatNeverAnswered(t *testing.T) {
	var state struct {
		Banner struct {
			Mode      string
			Recording *bool
			Policy    struct {
				NewestSeq *int64 `json:"newest_seq"`
				Behind    []any
				AllObey   *bool `json:"all_obey"`
			}
		}
	}
	status, text := send(serve(t, "postgres://nobody@127.0.0.1:1/none"), "state", "")
	if err := json.Unmarshal([]byte(text), &state); err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v: %s", status, err, text)
	}
	b := state.Banner
	if b.Mode != "database_down" || b.Recording != nil || b.Policy.NewestSeq != nil || len(b.Policy.Behind) > 0 || b.Policy.AllObey != nil {
		t.Errorf("the banner is %s", text)
	}
}

// What is taken back is named, with the amounts, in the question and in the answer.
func TestTakingAnOverrideBackNamesIt(t *testing.T) {
	a := ask(t)
	a.exec("SELECT rate_limit_rule('pro', per_minute => 20, per_hour => 500)")
	a.exec("INSERT INTO rate_limit_tiers (tier) VALUES ('gold')")
	a.exec("INSERT INTO rate_limit_users (user_id, tier) VALUES ('acme', 'gold')")
	var made doneOfPage
	a.do("override", map[string]any{"user": "acme", "rule": "pro", "limit": "per_minute", "events": 22}, &made)
	if made.Undo == nil {
		t.Fatalf("%+v", made)
	}
	const want = "acme’s pro/per_minute: 22 → 20"
	for _, body := range []map[string]any{{"user": "acme", "rule": "pro"}, made.Undo.Body} {
		var plan struct{ Question string }
		a.answer("unoverride", a.by(body), &plan)
		if plan.Question != "Take back "+want+"?" {
			t.Errorf("the question is %q", plan.Question)
		}
	}
	var back doneOfPage
	a.do("unoverride", made.Undo.Body, &back)
	if back.Done != "Taken back: "+want+"." {
		t.Errorf("the answer is %q", back.Done)
	}
	if status, text := send(a.api, "unoverride", a.by(made.Undo.Body)); status != http.StatusNotFound || !strings.Contains(text, "not in the database any more") {
		t.Errorf("again: status %d: %s", status, text)
	}
}

// doneOfPage is the answer to an action.
type doneOfPage struct {
	Done string
	Undo *struct{ Body map[string]any }
}

// do does an action, which is asked twice.
func (a *asked) do(name string, body map[string]any, into *doneOfPage) {
	a.Helper()
	var plan struct{ Confirm string }
	a.answer(name, a.by(body), &plan)
	body["confirm"] = plan.Confirm
	a.answer(name, a.by(body), into)
	delete(body, "confirm")
}

// by is a body with the name of a person.
func (a *asked) by(body map[string]any) string {
	a.Helper()
	body["by"] = "nora"
	text, err := json.Marshal(body)
	if err != nil {
		a.Fatal(err)
	}
	return string(text)
}

// Nobody has to know what a class of SQLSTATEs means.
func TestErrorsOfTheDatabaseHaveWords(t *testing.T) {
	a := ask(t)
	counts := map[string]int64{}
	for i, class := range sqlstate.Classes {
		counts[class] = int64(i + 1)
	}
	report, err := json.Marshal(map[string]any{"kind": "caddy", "stores": []any{map[string]any{"errors": counts}}})
	if err != nil {
		t.Fatal(err)
	}
	a.exec("INSERT INTO rate_limit_nodes (node, epoch, live, watched) VALUES ('edge', 1, $1, now() + interval '1 h')", string(report))
	var list struct {
		Proxies []struct{ Errors map[string]int64 }
	}
	a.answer("proxies", "", &list)
	if len(list.Proxies) != 1 || len(list.Proxies[0].Errors) != len(sqlstate.Classes) || list.Proxies[0].Errors["57 (server stopped, or statement cancelled)"] != counts["57"] {
		t.Fatalf("%+v", list)
	}
	for name := range list.Proxies[0].Errors {
		if len(name) == 2 {
			t.Errorf("%s has no words", name)
		}
	}
}
