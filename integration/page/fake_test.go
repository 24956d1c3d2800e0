package page

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	server "github.com/pgratelimit/pg-ratelimit/internal/plane/page"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
)

// policyOfPage is the Content-Security-Policy of the page's server.
const policyOfPage = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// object is one of JSON.
type object = map[string]any

// fake serves the page with the answers of a state, for pictures of states that would take an hour to make.
type fake struct {
	*testing.T
	*httptest.Server
	mu       sync.Mutex
	sections object
	asked    []string // such as "api/pause {…}"
}

func serve(t *testing.T, sections object) *fake {
	f := &fake{T: t, sections: sections}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir("../../internal/plane/page/static")))
	mux.HandleFunc("/{$}", f.page)
	mux.HandleFunc("POST /api/why", func(w http.ResponseWriter, r *http.Request) { f.answer(w, r, sections["why"]) })
	mux.HandleFunc("POST /api/", f.act)
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", policyOfPage)
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(f.Server.Close)
	return f
}

func (f *fake) answer(w http.ResponseWriter, _ *http.Request, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}

func (f *fake) session() object {
	return object{"write": true, "who": nil, "version": "v0.9.0", "database": "limits at db1.internal:5432"}
}

// page is the page, with the answers that the server of the page would have.
func (f *fake) page(w http.ResponseWriter, r *http.Request) {
	since := r.URL.Query().Get("since")
	if since != "" {
		f.hasAsked(strings.TrimPrefix(r.URL.String(), "/"))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	answers := object{"session": f.session(), "state": f.sections, "request": "GET /"}
	if since != "" {
		answers["top"], answers["since"] = f.sections["top"], since
	}
	if r.Method == http.MethodPost {
		answers["why"] = f.sections["why"]
	}
	var text bytes.Buffer
	if err := server.Write(&text, answers); err != nil {
		f.Error(err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(text.Bytes()) // the page may have gone
}

// change changes a section, as a database that goes on would.
func (f *fake) change(name string, section any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sections[name] = section
}

func (f *fake) hasAsked(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, what)
}

// awaitAsked waits until the page has asked something.
func (f *fake) awaitAsked(b *tab, what string) {
	b.Helper()
	await.Within(b, patience, "the page asks "+what, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return slices.Contains(f.asked, what)
	})
}

func (f *fake) act(w http.ResponseWriter, r *http.Request) {
	var body object
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, `{"error":"no"}`, http.StatusForbidden)
		return
	}
	text, _ := json.Marshal(body)
	f.hasAsked(strings.TrimPrefix(r.URL.Path, "/") + " " + string(text))
	if body["confirm"] == nil {
		f.answer(w, r, object{"confirm": "c", "question": "Pause all limits of this database until 15:05:03 UTC (1 hour)?", "danger": true,
			"effect": []string{"2 proxies let all requests pass uncounted within a second.", "Bans and block rules hold."}})
		return
	}
	f.answer(w, r, object{"done": "All limits are paused until 15:05:03 UTC.", "undo": object{"action": "resume", "body": object{}, "label": "End the pause"}})
}

// The time of the fake.
var at = time.Date(2026, 11, 21, 14, 5, 3, 0, time.UTC)

func ago(d time.Duration) string { return at.Add(-d).Format(time.RFC3339) }

// line is 60 values a minute apart, which change a little as real ones do.
func line(mean, swing float64) []float64 {
	values := make([]float64, 60)
	for i := range values {
		x := float64(i)
		values[i] = math.Max(0, math.Round(10*(mean+swing*(math.Sin(x/9)+0.4*math.Sin(x*1.7)+0.3*math.Cos(x*2.9))))/10)
	}
	return values
}

// traffic are the minutes of an hour, with requests a second.
func traffic(allowed, refused, failed []float64) object {
	from := at.Truncate(time.Minute).Add(-59 * time.Minute)
	minutes := []object{}
	for i := range allowed {
		minutes = append(minutes, object{"time": from.Add(time.Duration(i) * time.Minute), "allowed": int(60 * allowed[i]), "refused": int(60 * refused[i]), "failed": int(60 * failed[i])})
	}
	return object{"from": from, "until": at, "minutes": minutes, "outages": []object{}}
}

// headlines are those of the server.
var headlines = map[string]string{"enforcing": "Enforcing", "failing_open": "Failing open", "local_limits": "Local limits", "database_down": "Database down: without it, requests pass", "recovering": "Recovering"}

func text(name, text, kind string) object { return object{"name": name, "text": text, "kind": kind} }

func banner(mode, level, said string, allowed, refused, failed float64, notes ...string) object {
	if notes == nil {
		notes = []string{}
	}
	rate := func(n float64) string { return fmt.Sprint(n) + "/s" }
	figures := []object{text("Allowed", rate(allowed), ""), text("Refused", rate(refused), ""), text("No decision", rate(failed), ""), text("Failing open", "no proxy", ""), text("Database", "0.8 ms", ""), text("Newest policy", "obeyed by all", "")}
	return object{"headline": headlines[mode], "figures": figures, "at": at.Format(time.RFC3339), "level": level, "mode": mode, "text": said, "notes": notes,
		"database": object{"up": true, "error": nil, "since": nil, "latency_ms": 0.8, "proxies_p50_ms": 1.1, "proxies_p99_ms": 4.2},
		"pause":    nil, "now": object{"allowed": allowed, "refused": refused, "failed": failed}, "recording": true, "loading": false}
}

func proxy(node, kind string, allowed, refused float64, more object) object {
	p := object{"node": node, "region": "eu", "version": "v0.9.0", "kind": kind, "live": true, "state": "live", "seen": ago(time.Second), "seconds_ago": 0.7, "policy": true, "behind": 0, "paused": false,
		"problems": []string{}, "lacks": []string{}, "on_error": []string{"allow"}, "failing": nil, "counts": object{"leases": 12, "leased_units": 340, "waiting": 3, "in_flight": 2}, "local_since": nil, "local_from": nil, "local_until": nil, "blocked_keys": 4, "p50_ms": 1.1, "p99_ms": 4.2,
		"errors": object{}, "now": object{"allowed": allowed, "refused": refused, "failed": 0}, "up_since": ago(30 * time.Hour)}
	for name, v := range more {
		p[name] = v
	}
	remarks := []object{}
	for _, name := range []string{"lacks", "problems", "remarks"} {
		texts, _ := p[name].([]string)
		for _, one := range texts {
			remarks = append(remarks, text("", one, "warn"))
		}
	}
	p["remarks"] = remarks
	return p
}

func sender(prefix, key string, requests, refused int) object {
	if prefix == "" {
		return object{"name": key, "text": key, "requests": requests, "refused": refused, "failed": 0}
	}
	return object{"name": prefix + " " + key, "text": key + " · " + strings.TrimPrefix(prefix, "rule/"), "prefix": prefix, "key": key, "requests": requests, "refused": refused, "failed": 0}
}

func counter(rule, limit, key string, used, quota int) object {
	return object{"prefix": "rule/" + rule + "/" + limit, "rule": rule, "limit": limit, "key": key, "algorithm": "sliding_window", "used": used, "quota": quota,
		"percent": 100 * float64(used) / float64(quota), "resets": at.Add(55 * time.Minute).Format(time.RFC3339)}
}

func decision(before time.Duration, name, text, path string, count int) object {
	return object{"time": ago(before), "decision": name, "reason": nil, "text": text, "prefix": "rule/free", "limit": "per_hour", "key": "ann", "user": "ann", "key_id": 7, "tier": "free",
		"address": "203.0.113.9", "host": "api.example.com", "method": "GET", "path": path, "node": "edge-1", "status": 429, "cost": 1, "count": count, "weight": 1, "quota": 1000, "remaining": 0}
}

func top(keys, users, addresses, rules, asking []object) object {
	for _, list := range []*[]object{&keys, &users, &addresses, &rules, &asking} {
		if *list == nil {
			*list = []object{}
		}
	}
	return object{"from": ago(8 * time.Minute), "exact": true, "requests": 412345, "refused": 2345, "failed": 0, "note": nil, "keys": keys, "users": users, "addresses": addresses, "rules": rules, "asking": asking}
}

// busy is a usual afternoon.
func busy() object {
	return object{
		"banner":  banner("enforcing", "ok", "Limits are enforced by 3 proxies.", 812, 14, 0, "1 of 4 limits is in the mode shadow: it refuses nothing."),
		"traffic": traffic(line(790, 60), line(12, 4), line(0, 0)),
		"top": top([]object{sender("web", "203.0.113.9", 3120, 1204), sender("rule/free/per_hour", "ann", 940, 411), sender("rule/pro/per_minute", "acme", 18200, 210)},
			[]object{sender("", "ann", 940, 411), sender("", "acme", 18200, 210), sender("", "globex", 7400, 12)},
			[]object{sender("", "203.0.113.9", 3120, 1204), sender("", "2001:db8:7::/64", 900, 66)},
			[]object{sender("", "web", 201400, 1270), sender("", "rule/free", 40120, 865), sender("", "rule/pro", 140800, 210)},
			[]object{sender("rule/pro/per_minute", "acme", 18200, 210), sender("rule/pro/per_minute", "globex", 7400, 12), sender("web", "203.0.113.9", 3120, 1204), sender("rule/free/per_hour", "ann", 940, 411)}),
		"near": object{"looked": at, "note": nil, "counters": []object{counter("free", "per_hour", "ann", 1000, 1000), counter("pro", "per_minute", "acme", 2910, 3000), counter("free", "per_hour", "hooli", 812, 1000)}},
		"proxies": object{"proxies": []object{proxy("edge-1", "caddy", 402, 7, nil), proxy("edge-2", "caddy", 398, 6, nil),
			proxy("traefik-1", "traefik", 12, 1, object{"region": "us", "up_since": ago(40 * time.Minute)})}},
		"limits": object{"limits": []object{{"prefix": "web", "key": "{client_ip}", "algorithm": "sliding_window", "mode": "enforce", "on_error": "allow", "nodes": []string{"edge-1", "edge-2"}, "text": "100 in 1m", "settle": nil, "in_flight": nil},
			{"prefix": "tokens", "key": "{header.X-Tenant}", "algorithm": "sliding_window", "mode": "shadow", "on_error": "local", "nodes": []string{"edge-1"}, "text": "100,000 in 1h", "settle": "json usage.total_tokens", "in_flight": nil},
			{"prefix": "reports", "key": "{client_ip}", "algorithm": "in_flight", "mode": "enforce", "on_error": "allow", "nodes": []string{"edge-1"}, "text": "5 in flight", "settle": nil, "in_flight": 12}}},
		"bans": object{"bans": []object{{"kind": "network", "banned": "198.51.100.0/24", "until": nil, "reason": "scan", "times": 1, "banned_at": ago(time.Hour), "banned_by": "admin (ann)"}}, "total": 1},
		"changes": object{"changes": []object{
			{"seq": 481, "at": ago(11 * time.Minute), "text": "override user acme pro/per_hour: created", "by": "admin (ann)", "kind": "override", "name": "override user acme"},
			{"seq": 477, "at": ago(25 * time.Minute), "text": "rule free: per_hour: 2000 → 1000", "by": "deploy", "kind": "rule", "name": "rule free"}}},
		"why": object{"kind": "user", "taken": "a user", "who": "ann", "found": true, "refused": true, "at": at, "summary": "ann was refused 10 times in the decisions below, last at 14:05:02 UTC. Refused by the limit free/per_hour: 1,000 of 1,000 were used.",
			"user": object{"user": "ann", "tier": "free", "keys": []object{{"id": 7, "hint": "pgrl_ab…", "name": "app", "state": "valid", "tier": nil}}, "overrides": []object{}, "bans": []object{}, "usage": []object{}},
			"bans": []object{}, "counters": []object{counter("free", "per_hour", "ann", 1000, 1000)},
			"decisions": []object{decision(time.Second, "limited", "Refused by the limit free/per_hour: 1,000 of 1,000 were used. It would have passed 32 min later.", "/v1/reports", 4),
				decision(2*time.Second, "limited", "Refused by the limit free/per_hour: 1,000 of 1,000 were used. It would have passed 32 min later.", "/v1/reports/2026/11", 6)},
			"decisions_note": "Only refusals are in the audit log.",
			"next": object{"text": "The next request would be refused with status 429: limit free/per_hour. It would pass at 14:37:10 UTC.", "passes": false, "explanation": object{"rules": []object{{"name": "free", "action": "limit", "mode": "enforce", "applies": true, "why": "it matches"}},
				"limits": []object{{"rule": "free", "limit": "per_hour", "key": "ann", "algorithm": "sliding_window", "seconds": 3600.0, "calendar": nil, "quota": 1000, "amount_from": "rule", "cost": 1, "left": 0,
					"reset": at.Add(55 * time.Minute), "retry_after": 1927.0, "passes": false, "shadow": false, "overage": false, "status": 429}}}}},
	}
}

// idle is a database that nobody has asked anything.
func idle() object {
	s := busy()
	s["banner"] = banner("enforcing", "ok", "Limits are enforced by 1 proxy.", 0, 0, 0)
	s["traffic"], s["changes"] = traffic(line(0, 0), line(0, 0), line(0, 0)), object{"changes": []object{}}
	s["top"] = top(nil, nil, nil, nil, nil)
	s["near"] = object{"looked": at, "note": nil, "counters": []object{}}
	s["proxies"] = object{"proxies": []object{proxy("edge-1", "caddy", 0, 0, object{"counts": object{}})}}
	s["bans"] = object{"bans": []object{}, "total": 0}
	return s
}

// attacked is a flood: much is refused, and a proxy lets requests pass without a decision.
func attacked() object {
	s := busy()
	s["banner"] = banner("failing_open", "bad", "edge-2 lets requests pass uncounted: the database does not answer it in time.", 2210, 18400, 310)
	s["banner"].(object)["figures"].([]object)[3] = text("Failing open", "edge-2", "bad")
	refused, failed := line(12, 4), line(0, 0)
	for i := 48; i < 60; i++ {
		refused[i], failed[i] = 1500*float64(i-47)+float64(i*i%700), float64((i-47)*25)
	}
	s["traffic"] = traffic(line(790, 60), refused, failed)
	s["proxies"] = object{"proxies": []object{proxy("edge-1", "caddy", 1900, 9200, object{"p99_ms": 41.0}),
		proxy("edge-2", "caddy", 310, 9200, object{"failing": "open", "p99_ms": 380.0, "errors": object{"timeout": 310}}),
		proxy("traefik-1", "traefik", 0, 0, object{"live": false, "state": "gone", "seconds_ago": 94.0, "behind": nil, "now": nil, "p99_ms": nil, "counts": nil})}}
	var keys, addresses []object
	for i := range 10 {
		keys = append(keys, sender("web", fmt.Sprintf("198.51.100.%d", 17*i+3), 90000-i*7000, 89000-i*7000))
		addresses = append(addresses, sender("", fmt.Sprintf("198.51.100.%d", 17*i+3), 90000-i*7000, 89000-i*7000))
	}
	s["top"] = top(keys, nil, addresses, []object{sender("", "web", 600000, 580000)}, keys)
	return s
}

// local is busy when a proxy has no decisions of the database, and limits by itself.
func local() object {
	s := busy()
	s["banner"] = banner("local_limits", "bad", "edge-2 limits by itself, at its share of each limit, because the database makes no decisions.", 795, 19, 0)
	s["proxies"] = object{"proxies": []object{proxy("edge-1", "caddy", 402, 7, object{"remarks": []string{"has limited by itself from 13:15:03 UTC to 13:17:03 UTC."}}),
		proxy("edge-2", "caddy", 381, 11, object{"failing": "local", "remarks": []string{"limits by itself since 14:04:42 UTC, at its share of each limit, because the database makes no decisions."}, "on_error": []string{"local"}, "p99_ms": 250.0, "errors": object{"timeout": 4}}), proxy("traefik-1", "traefik", 12, 1, nil)}}
	return s
}

// recovering is busy just after an outage of three minutes.
func recovering() object {
	s := busy()
	text := "1,620 requests passed without a decision from 13:50 to 13:53 UTC."
	s["banner"] = banner("recovering", "warn", "The database answers again since 14:04:58 UTC.", 795, 19, 0, text)
	failed := line(0, 0)
	for i := 45; i < 48; i++ {
		failed[i] = 9
	}
	s["traffic"] = traffic(line(790, 60), line(12, 4), failed)
	s["traffic"].(object)["outages"] = []object{{"from": at.Truncate(time.Hour).Add(-10 * time.Minute), "until": at.Truncate(time.Hour).Add(-7 * time.Minute), "requests": 1620, "text": text}}
	return s
}

// down is busy when the database has been away for a while.
func down() object {
	s := busy()
	b := banner("database_down", "bad", "The database does not answer since 14:04:21 UTC.", 0, 0, 0)
	b["now"] = nil
	b["database"] = object{"up": false, "error": "failed to connect to `user=limits database=limits`: 127.0.0.1:5432 (db1.internal): dial error: dial tcp 127.0.0.1:5432: connect: connection refused", "since": ago(42 * time.Second), "latency_ms": nil, "proxies_p50_ms": nil, "proxies_p99_ms": nil}
	b["notes"] = []string{"What is below is of 14:04:21 UTC. The error is: connection refused. In full: failed to connect to db1.internal"}
	b["figures"] = []object{text("Allowed", "–", ""), text("Refused", "–", ""), text("No decision", "–", ""), text("Failing open", "without it: 3 proxies", "bad"), text("Database", "down", "bad"), text("Newest policy", "not known", "warn")}
	s["banner"] = b
	return s
}

// hostile is busy, with texts that would do harm if a page took them for HTML, for letters that it may draw,
// or for something short.
func hostile() object {
	s := busy()
	texts := []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(2)>`, `javascript:alert(3)`, `'};alert(4)//`, "\u202egnp.exe\u202c", "a\u0000b\u0007\u200b\u2066c", strings.Repeat("W", 500),
		strings.Repeat("e\u0301\u0302\u0303\u0304", 100), "__proto__", "constructor", `</textarea><svg onload=alert(5)>`, "\n\n\n\t", "{{7*7}}", "%3Cscript%3E", `&lt;b&gt;`,
	}
	var senders, names, counters, decisions, bans, changes []object
	for i, text := range texts {
		senders = append(senders, sender("web", text, 1000-i, 900-i))
		names = append(names, sender("", text, 1000-i, 900-i))
		c := counter("free", "per_hour", text, 900+i, 1000)
		c["prefix"], c["rule"] = text, text
		counters = append(counters, c)
		d := decision(time.Second, "limited", text, "/"+text, 1)
		d["host"], d["user"], d["node"], d["address"] = text, text, text, text
		decisions = append(decisions, d)
		bans = append(bans, object{"kind": "user", "banned": text, "until": nil, "reason": text, "times": 1, "banned_at": ago(time.Hour), "banned_by": text})
		changes = append(changes, object{"seq": i, "at": ago(time.Duration(i) * time.Minute), "text": text, "by": text, "kind": "rule", "name": text})
	}
	s["banner"] = banner("enforcing", "ok", texts[0], 812, 14, 0, texts...)
	s["top"] = top(senders, names, names, names, senders)
	s["near"] = object{"looked": at, "note": texts[1], "counters": counters}
	s["proxies"] = object{"proxies": []object{proxy(texts[0], "caddy", 1, 1, object{"region": texts[1], "version": texts[6], "problems": texts, "lacks": texts}), proxy("__proto__", "caddy", 1, 1, nil)}}
	s["limits"] = object{"limits": []object{{"prefix": texts[0], "key": texts[1], "algorithm": "gcra", "mode": "enforce", "on_error": "allow", "nodes": texts, "text": texts[2]}}}
	s["bans"], s["changes"] = object{"bans": bans, "total": 10000, "more": 9985}, object{"changes": changes}
	why := s["why"].(object)
	why["who"], why["summary"], why["decisions"], why["counters"], why["bans"], why["decisions_note"] = texts[0], texts[1], decisions, counters, bans, texts[0]
	why["user"].(object)["tier"] = texts[2]
	return s
}
