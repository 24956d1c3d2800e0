package caddymodule_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// pageSite has a limit by a header, and the page for this machine.
const pageSite = `
	{
		pg_ratelimit {
			dsn DSN
			history
		}
	}
	:PORT {
		@page {
			path /limits /limits/*
			remote_ip 127.0.0.1
		}
		handle @page {
			uri strip_prefix /limits
			pg_ratelimit_page {
				write
			}
		}
		handle {
			pg_ratelimit PREFIX {
				key {header.X-Key}
				limit 20 1h
				timeout 10s
			}
			respond "passed"
		}
	}`

// pageClient asks the page of a Caddy.
type pageClient struct{ *live }

// startPage starts a Caddy with a page, and opens the page.
func startPage(t *testing.T, dsn string) *pageClient {
	t.Helper()
	return &pageClient{start(t, strings.ReplaceAll(pageSite, "DSN", dsn))}
}

// page sends a request to the page.
func (c *pageClient) page(method, path, body string, header ...string) (int, http.Header, string) {
	c.t.Helper()
	r, err := http.NewRequest(method, "http://127.0.0.1:"+c.port+"/limits"+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		if r.Header.Set(header[i], header[i+1]); header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	a := harness.Ask(c.t, r)
	return a.Status, a.Header, a.Body
}

// get asks a question, and reads the answer.
func (c *pageClient) get(name string, into any) {
	c.t.Helper()
	status, _, text := c.page("GET", "/api/"+name, "")
	c.read(name, status, text, into)
}

// post asks a question with a body.
func (c *pageClient) post(name string, body, into any) {
	c.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	status, _, answer := c.page("POST", "/api/"+name, string(text))
	c.read(name, status, answer, into)
}

func (c *pageClient) read(name string, status int, text string, into any) {
	c.t.Helper()
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	if err := decoder.Decode(into); err != nil || status != http.StatusOK {
		c.t.Fatalf("%s: status %d, %v: %.2000s", name, status, err, text)
	}
}

type topOfPage struct {
	Requests, Refused       int64
	Asking, Keys, Addresses []struct {
		Key, Name         string
		Requests, Refused int64
	}
}

// pageState is a part of what the page shows.
type pageState struct {
	Banner struct {
		Mode, Level, Text  string
		Recording, Loading bool
		Notes              []string
	}
	Top     topOfPage
	Traffic struct {
		From    time.Time
		Minutes []struct {
			Time             time.Time
			Allowed, Refused int64
		}
	}
	Near struct {
		Counters []struct {
			Prefix, Key string
			Used, Quota int64
		}
	}
	Proxies struct {
		Proxies []struct {
			Node, Kind string
			Live       bool
			Remarks    []any
		}
	}
	Limits struct {
		Limits []struct{ Prefix, Key, Text, Mode string }
	}
}

func TestThePageNamesTheHeaviestKeysWithinSeconds(t *testing.T) {
	c := startPage(t, cluster.Open(t))
	var state pageState
	await.Within(t, time.Minute, "the page is ready", func() bool {
		state = pageState{}
		c.get("state", &state)
		return state.Banner.Recording && len(state.Limits.Limits) == 1
	})
	if b := state.Banner; b.Mode != "enforcing" || b.Level != "ok" {
		t.Errorf("the banner: %+v", b)
	}
	if l := state.Limits.Limits[0]; l.Prefix != c.prefix() || l.Key != "{header.X-Key}" || l.Text != "20 in 1h" {
		t.Errorf("the limits: %+v", l)
	}
	sent := map[string]int64{"<script>alert(1)</script>": 60, "second": 40, "third\u202e": 25, "fourth": 3}
	total := int64(0)
	for i := int64(0); i < 60; i++ {
		for key, n := range sent {
			if i < n {
				c.live.get("/x", "X-Key", key)
				total++
			}
		}
	}
	await.Within(t, time.Minute, "the page has all requests", func() bool {
		state = pageState{}
		c.get("state", &state)
		var allowed, refused int64
		for _, m := range state.Traffic.Minutes {
			allowed, refused = allowed+m.Allowed, refused+m.Refused
			if m.Time.Before(state.Traffic.From) {
				t.Fatalf("the traffic is %+v", state.Traffic)
			}
		}
		return state.Top.Requests == total && len(state.Near.Counters) == 3 && allowed == 63 && refused == 65
	})
	for i, want := range []string{"<script>alert(1)</script>", "second", "third\u202e", "fourth"} {
		if got := state.Top.Asking[i]; got.Key != want || got.Requests != sent[want] || got.Refused != max(0, sent[want]-20) {
			t.Errorf("key %d is %+v, want %q with %d requests", i, got, want, sent[want])
		}
	}
	if len(state.Top.Keys) != 3 || state.Top.Keys[0].Refused != 40 {
		t.Errorf("the most refused keys: %+v", state.Top.Keys)
	}
	if a := state.Top.Addresses; len(a) != 1 || a[0].Name != "127.0.0.1" || a[0].Requests != total {
		t.Errorf("the addresses: %+v", a)
	}
	for _, near := range state.Near.Counters {
		if near.Used != 20 || near.Quota != 20 {
			t.Errorf("above 80 %%: %+v", near)
		}
	}
	if p := state.Proxies.Proxies; len(p) != 1 || p[0].Kind != "caddy" || !p[0].Live || len(p[0].Remarks) > 0 {
		t.Errorf("the proxies: %+v", p)
	}
	_, _, raw := c.page("GET", "/api/state", "")
	if strings.Contains(raw, "<script>") {
		t.Error("the JSON has a tag")
	}

	var why struct {
		Kind, Summary string
		Found         bool
		Decisions     []struct{ Text string }
		Counters      []struct{ Used, Quota int64 }
	}
	await.Within(t, time.Minute, "the audit log has the refusals", func() bool {
		c.post("why", map[string]any{"who": "second"}, &why)
		return len(why.Decisions) > 0
	})
	if !why.Found || !strings.Contains(why.Summary, "was refused") || len(why.Counters) != 1 || why.Counters[0].Used != 20 || !strings.Contains(why.Decisions[0].Text, "20 of 20 were used") {
		t.Errorf("why: %+v", why)
	}
	_, _, metrics := c.page("GET", "/metrics", "")
	if want := `decision="limited",node=`; !strings.Contains(metrics, want) || !strings.Contains(metrics, "pg_ratelimit_database_up 1") || !strings.Contains(metrics, "pg_ratelimit_batch_duration_seconds_bucket") {
		t.Errorf("the metrics: %.2000s", metrics)
	}
	var top topOfPage
	c.get("top?since=1h", &top)
	if top.Requests != total || len(top.Keys) != 3 {
		t.Errorf("the top of an hour: %+v", top)
	}
}

// planOfPage and doneOfPage are the two answers to an action.
type planOfPage struct {
	Confirm, Question string
	Effect            []string
}

type doneOfPage struct {
	Done string
	Undo *struct {
		Action, Label string
		Body          map[string]any
	}
}

// do does an action, which is asked twice.
func (c *pageClient) do(name string, body map[string]any) doneOfPage {
	c.t.Helper()
	body["by"] = "ann"
	var plan planOfPage
	c.post(name, body, &plan)
	if plan.Confirm == "" || plan.Question == "" {
		c.t.Fatalf("%s: the plan is %+v", name, plan)
	}
	body["confirm"] = plan.Confirm
	var did doneOfPage
	c.post(name, body, &did)
	if did.Done == "" {
		c.t.Fatalf("%s: the answer is %+v", name, did)
	}
	return did
}

func TestThePageAsksTwiceAndHasAWayBack(t *testing.T) {
	dsn := withPolicy(t, people+`SELECT rate_limit_rule('plan', tiers => '{pro}', per_hour => 1000);`)
	c := startPage(t, dsn)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	count := func(sql string) (n int64) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, one := range []struct {
		action string
		body   map[string]any
		is     string // 1 after the action, and 0 before and after the way back
	}{
		{"pause", map[string]any{"for": "10m", "reason": "outage"}, "SELECT count(*) FROM rate_limit_pause WHERE until > now() AND paused_by LIKE '% (ann)'"},
		{"ban", map[string]any{"user": "bob", "for": "never"}, "SELECT count(*) FROM rate_limit_bans WHERE user_id = 'bob' AND banned_by LIKE '% (ann)'"},
		{"ban", map[string]any{"network": "203.0.113.0/24", "for": "1h"}, "SELECT count(*) FROM rate_limit_bans WHERE network = '203.0.113.0/24'"},
		{"override", map[string]any{"user": "bob", "rule": "plan", "percent": 10, "until": "midnight"},
			"SELECT count(*) FROM rate_limit_overrides WHERE user_id = 'bob' AND events = 1100 AND upper(valid) < now() + interval '25 h' AND created_by LIKE '% (ann)'"},
	} {
		if n := count(one.is); n != 0 {
			t.Fatalf("%s: %d before", one.action, n)
		}
		did := c.do(one.action, one.body)
		if n := count(one.is); n != 1 || did.Undo == nil {
			t.Fatalf("%s: %d after it, and the way back is %+v", one.action, n, did.Undo)
		}
		c.do(did.Undo.Action, did.Undo.Body)
		if n := count(one.is); n != 0 {
			t.Errorf("%s: %d after the way back", one.action, n)
		}
	}
	if n := count("SELECT count(*) FROM rate_limit_changes WHERE by LIKE '% (ann)'"); n != 8 {
		t.Errorf("the log of changes has %d lines of ann, want 8", n)
	}
	// The way back of a pause over another one is that one.
	c.do("pause", map[string]any{"for": "2h", "reason": "planned"})
	over := c.do("pause", map[string]any{"for": "10m", "reason": "outage"})
	if over.Undo == nil || over.Undo.Action != "pause" {
		t.Fatalf("the way back of a second pause is %+v", over.Undo)
	}
	c.do(over.Undo.Action, over.Undo.Body)
	if n := count("SELECT count(*) FROM rate_limit_pause WHERE until > now() + interval '1 h' AND reason = 'planned'"); n != 1 {
		t.Error("the first pause is not back")
	}
	c.do("resume", map[string]any{})
	// A name that nobody has may be mistyped.
	var plan planOfPage
	c.post("ban", map[string]any{"user": "bbo", "by": "ann"}, &plan)
	if !slices.Contains(plan.Effect, "The policy has no user of this name.") {
		t.Errorf("a ban of a stranger: %+v", plan)
	}
	if status, _, text := c.page("POST", "/api/ban", `{"key_id": 999, "by": "ann"}`); status != http.StatusNotFound || !strings.Contains(text, "999") {
		t.Errorf("a ban of no key: status %d: %s", status, text)
	}
	// What a person has not been asked about is not done.
	c.post("pause", map[string]any{"for": "1m", "by": "ann"}, &plan)
	body, err := json.Marshal(map[string]any{"for": "2m", "by": "ann", "confirm": plan.Confirm})
	if err != nil {
		t.Fatal(err)
	}
	if status, _, text := c.page("POST", "/api/pause", string(body)); status != http.StatusConflict {
		t.Errorf("a confirmation of another body: status %d: %s", status, text)
	}
	var changes struct {
		Changes []struct {
			Kind, By, Text string
		}
	}
	c.get("changes?since=1h", &changes)
	if len(changes.Changes) < 8 || !strings.HasSuffix(changes.Changes[0].By, "(ann)") {
		t.Errorf("the changes: %+v", changes)
	}
}

// The admin endpoint answers by the code of the page, for the database of the handlers.
func TestTheAdminEndpointAnswersAsThePage(t *testing.T) {
	c := startPage(t, withPolicy(t, people))
	module, err := caddy.GetModule("admin.api.pg_ratelimit")
	if err != nil {
		t.Fatal(err)
	}
	route := module.New().(caddy.AdminRouter).Routes()[0]
	ask := func(method, path, body string) (int, string) {
		t.Helper()
		r := httptest.NewRequest(method, route.Pattern+path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		if err := route.Handler.ServeHTTP(w, r); err != nil {
			t.Fatal(err)
		}
		return w.Code, w.Body.String()
	}
	for _, one := range []struct{ method, path, body, want string }{
		{"GET", "proxies", "", `"kind":"caddy"`}, {"GET", "top?since=2h", "", `"rules":[`}, {"GET", "usage?user=acme&month=2026-11", "", `"first":"2026-11-01"`},
		{"GET", "bans", "", `"total":0`}, {"GET", "changes", "", `"kind":"user"`}, {"POST", "why", `{"who": "bob", "at": "14:05"}`, `"tier":"pro"`},
		{"POST", "explain", `{"user": "alice"}`, `"tier":"free"`}, {"POST", "pause", `{"for": "1m", "by": "ann"}`, `"confirm":"`},
	} {
		await.Within(t, time.Minute, "the answer to "+one.path, func() bool {
			status, text := ask(one.method, one.path, one.body)
			return status == http.StatusOK && strings.Contains(text, one.want)
		})
	}
	if status, text := ask("POST", "counters", `{"prefix": "`+c.prefix()+`", "key": "nobody"}`); status != http.StatusNotFound || !strings.Contains(text, "there is no counter") {
		t.Errorf("no counter: status %d: %s", status, text)
	}
}
