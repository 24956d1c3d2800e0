package edge_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// fuzzedSecret is in no error about a setting.
const fuzzedSecret = "S3cr3tOfMine"

// FuzzSettings: any text of any setting is refused with an error that names a setting and shows no secret, or is a
// setting of a limit that can be counted.
func FuzzSettings(f *testing.F) {
	tables := slices.Concat(edge.LimitTable, edge.HandlerTable, edge.PolicyTable, edge.PageTable, edge.StoreTable, edge.HistoryTable, edge.RetentionTable)
	tables = slices.DeleteFunc(tables, func(s edge.Setting) bool { return s.Read == nil })
	seeds := map[string][]string{
		"key": {"{header.X-Api-Key} | {client_ip}", "a | b", "{a}||{b}"}, "algorithm": {"in_flight", "gcra"}, "limit": {"100 1m", "5", "5 1mo calendar Europe/Berlin"},
		"burst": {"5"}, "cost": {"{header.X}", "7"},
		"settle": {"header X-Cost", "bytes", "json usage.total_tokens", "status 401 403 = 1, else 0"}, "lease": {"5%", "0.1%"},
		"audit": {"sample 1%", "denied"}, "exempt": {"10.0.0.0/8 192.0.2.7 ::1"},
		"archive": {"s3://logs/limits daily before 30d expire 7y drop", "/var/x daily", "s3://k:", "http://u:"}, "timeout": {"250ms"}, "cleanup_probability": {"0.1"}, "fields": {"x ietf"},
	}
	for i := range tables {
		for _, text := range append(seeds[tables[i].Name], "on") {
			f.Add(uint8(i), text)
		}
	}
	f.Fuzz(func(t *testing.T, at uint8, text string) {
		if strings.Contains(text, fuzzedSecret) {
			return
		}
		setting := &tables[int(at)%len(tables)]
		check := func(text string) error {
			alone := edge.Setting{Name: setting.Name, Want: setting.Want, Read: setting.Read, Unset: setting.Unset}
			err := edge.Read([]edge.Setting{alone}, edge.Values{setting.Name: text}, &edge.Settings{})
			var wrong *ratelimit.FieldError
			if err != nil && (!errors.As(err, &wrong) || wrong.Field == "" || wrong.Want == "") {
				t.Errorf("%s %q: %v", setting.Name, text, err)
			}
			return err
		}
		if setting.Name == "archive" {
			_ = check(text)
			text = "s3://key:" + fuzzedSecret + "@" + text
		}
		if err := check(text); err != nil {
			if strings.Count(text, fuzzedSecret) == 1 && strings.Contains(err.Error(), fuzzedSecret) {
				t.Errorf("%s %q: %v", setting.Name, text, err)
			}
			return
		}
		settings := edge.Values{"prefix": "p", "limit": "100 1m"}
		settings[setting.Name] = text
		_, err := edge.ReadLimit(settings)
		if wrong := (*ratelimit.FieldError)(nil); err != nil && !errors.As(err, &wrong) {
			t.Errorf("%s %q: %v", setting.Name, text, err)
		}
	})
}

// FuzzTextsOfRequests: whatever a client sends as a cost, an address, a path or a query, the cost is no refund, a
// key has one form, and the answer is a valid one.
func FuzzTextsOfRequests(f *testing.F) {
	for _, seed := range [][2]string{
		{"18446744073709551616", "0"}, {"-1", "+5"}, {"::ffff:192.0.2.1", "/a/../b?x;y"}, {"2001:DB8::1%eth0", "//..//%2e"}, {"1.000", "é\n\"\\"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, other string) {
		var hit ratelimit.Hit
		if edge.SetCost(&hit, text); hit.Cost < 1 || hit.Peek {
			t.Errorf("the cost %q is %+v", text, hit)
		}
		for _, v4 := range []int{24, 32} {
			if once := edge.Network(text, v4, 64); edge.Network(once, v4, 64) != once {
				t.Errorf("the network of %q is %q, and of that %q", text, once, edge.Network(once, v4, 64))
			}
		}
		if once := edge.Path(text); edge.Path(once) != once {
			t.Errorf("the path %q is %q, and of that %q", text, once, edge.Path(once))
		}
		if u, err := url.ParseRequestURI(text); err == nil {
			if once := edge.CleanURL(u); edge.CleanURL(once).String() != once.String() || edge.QueryValue(once, "a") != edge.QueryValue(u, "a") {
				t.Errorf("the URL %q is %q, and of that %q", u, once, edge.CleanURL(once))
			}
		}
		q := &edge.Request{HTTP: &http.Request{}, Decisions: []ratelimit.Decision{{Limit: 5, RetryAfter: time.Second}}}
		q.Hits = []ratelimit.Hit{{Limit: &ratelimit.Limit{Prefix: text, Events: 5, Window: time.Minute}, Key: other, Cost: 1}}
		q.Outcome = edge.Judge(q)
		h := http.Header{}
		if edge.Respond(&edge.Site{Fields: respond.Fields{X: true, IETF: true}}, q, h); !json.Valid([]byte(q.Body)) {
			t.Errorf("the answer is %q", q.Body)
		}
		for name, values := range h {
			if len(values) != 1 || strings.ContainsFunc(values[0], func(c rune) bool { return c < ' ' || c >= 0x7f }) {
				t.Errorf("%s: %q", name, values)
			}
		}
		_ = respond.HasLessRemaining(http.Header{"X-Ratelimit-Remaining": {text}}, 5) // does not panic
	})
}

// FuzzAnswersOfUpstreams: whatever an upstream answers, in whatever parts, the request costs from 0 to the largest quota, and
// the parts do not matter.
func FuzzAnswersOfUpstreams(f *testing.F) {
	for _, text := range []string{
		`{"usage":{"total_tokens":25}}`, "data: {\"usage\":{\"total_tokens\":5}}\n\ndata: [DONE]\n\n", "data:{\"usage\":\r\ndata:{\"total_tokens\":7}}\r\n\r\n", `{"usage":{"total_tokens":-1}}`,
		`{"usage":{"total_tokens":1e3}}`, `{"usage":{"total_tokens":99999999999999999999}}`, `{"usage":{"total_tokens":null}}`, "25", "9007199254740993",
	} {
		f.Add([]byte(text), uint16(3))
	}
	f.Fuzz(func(t *testing.T, text []byte, part uint16) {
		if len(text) > 1<<16 {
			return
		}
		used := func(settle string, h http.Header, part int) string {
			s := newSettling(t, settle)
			s.Header(http.StatusOK, h)
			for rest := range slices.Chunk(text, part) {
				s.Body(rest)
			}
			return s.used(t)
		}
		for _, contentType := range []string{"application/json", "text/event-stream"} {
			h := http.Header{"Content-Type": {contentType}}
			whole := used("json usage.total_tokens", h, max(1, len(text)))
			if parts := used("json usage.total_tokens", h, int(part)+1); parts != whole {
				t.Errorf("%s %q: %s as a whole, and %s in parts of %d bytes", contentType, text, whole, parts, part+1)
			}
			if _, cost, _ := strings.Cut(whole, " "); strings.HasPrefix(cost, "-") || len(cost) > 16 {
				t.Errorf("%s %q: %s", contentType, text, whole)
			}
		}
		if got := used("header X-Cost", http.Header{"X-Cost": {string(text)}}, 1<<16); strings.Contains(got, " -") {
			t.Errorf("X-Cost: %q: %s", text, got)
		}
	})
}
