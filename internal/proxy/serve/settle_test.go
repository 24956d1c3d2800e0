package serve_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/store/memory"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// settling is a request of cost 10 that passed a limit with the setting settle.
type settling struct {
	*serve.Settling
	store    ratelimit.Store
	hit      ratelimit.Hit
	outcomes chan string
	leave    func() // closes the connection of the client
}

func newSettling(t testing.TB, text string) *settling {
	t.Helper()
	how, err := settings.ParseSettle(text)
	if err != nil {
		t.Fatal(err)
	}
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &settling{store: store, outcomes: make(chan string, 9)}
	s.hit = ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow,
		Events: 1 << 40, Window: time.Hour}, Key: "k", Cost: 10, Secret: true}
	decisions := make([]ratelimit.Decision, 1)
	if err := store.Take(context.Background(), time.Second, []ratelimit.Hit{s.hit}, decisions); err != nil {
		t.Fatal(err)
	}
	site := &serve.Site{Store: store, Settled: func(_ string, outcome serve.SettleOutcome) {
		s.outcomes <- string(outcome)
	}}
	client, leave := context.WithCancel(context.Background())
	s.leave = leave
	s.Settling = serve.NewSettling(site,
		&serve.Request{HTTP: httptest.NewRequestWithContext(client, http.MethodGet, "/", nil),
			Limits: &serve.LimitSet{Settles: []*settings.Settle{how}},
			Hits:   []ratelimit.Hit{s.hit}, Decisions: decisions})
	return s
}

// used ends the request, and returns the outcome of its settlement and the units counted after it.
func (s *settling) used(t testing.TB) string {
	t.Helper()
	return s.usedAfter(t, 0)
}

// usedAfter is used for a request that failed with a status, or 0.
func (s *settling) usedAfter(t testing.TB, failed int) string {
	t.Helper()
	s.End(failed, http.Header{})
	outcome := <-s.outcomes
	decisions := make([]ratelimit.Decision, 1)
	s.hit.Peek = true
	if err := s.store.Take(context.Background(), time.Second, []ratelimit.Hit{s.hit}, decisions); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(outcome, " ", 1<<40-decisions[0].Remaining)
}

// TestAnEventStreamIsReadInAnyParts splits a stream at each position. The last event with the field counts.
func TestAnEventStreamIsReadInAnyParts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSettling(t, "json usage.total_tokens")
		end := rapid.SampledFrom([]string{"\n", "\r\n"}).Draw(rt, "end")
		stream, want := "", int64(10)
		for n := rapid.IntRange(0, 5).Draw(rt, "events"); n > 0; n-- {
			cost := rapid.Int64Range(0, 1000).Draw(rt, "cost")
			switch rapid.IntRange(0, 4).Draw(rt, "kind") {
			case 0:
				stream += "data: [DONE]" + end
			case 1:
				stream += ": total_tokens" + end + "event: total_tokens" + end
			case 2:
				stream += `data: {"total_tokens":5,"usage":{"total_tokens":null}}` + end
			case 3:
				stream += `data:{"usage":` + end + fmt.Sprintf(`data: {"total_tokens": %d }}`, cost) + end
				want = cost
			default:
				stream += fmt.Sprintf(`data: {"usage":{"total_tokens":%d},"text":"\n\n"}`, cost) + end
				want = cost
			}
			if n > 1 || rapid.Bool().Draw(rt, "ended") {
				stream += end
			}
		}
		serve.ReadHeaders(200, http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}}, s.Settling)
		for rest := stream; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(rt, "part")
			s.Body([]byte(rest[:n]))
			rest = rest[n:]
		}
		if got := s.used(t); !strings.HasSuffix(got, fmt.Sprint(" ", want)) {
			rt.Fatalf("%q: %s, want %d", stream, got, want)
		}
	})
}

// TestBodiesAreReadWithinBounds checks that a body that is too long, encoded or of another type leaves the
// charge unchanged, and that no buffer stays in use.
func TestBodiesAreReadWithinBounds(t *testing.T) {
	const body = `{"usage":{"total_tokens":25}}`
	long := strings.Repeat(" ", 4<<20)
	for name, test := range map[string]struct {
		header http.Header
		parts  []string
		want   string
	}{
		"json": {http.Header{"Content-Type": {"application/json"}}, []string{body[:9], body[9:]},
			"more 25"},
		"no type":       {http.Header{}, []string{body}, "more 25"},
		"identity":      {http.Header{"Content-Encoding": {"identity"}}, []string{body}, "more 25"},
		"gzip":          {http.Header{"Content-Encoding": {"gzip"}}, []string{body}, "invalid 10"},
		"html":          {http.Header{"Content-Type": {"text/html"}}, []string{body}, "missing 10"},
		"broken":        {http.Header{}, []string{body[:20]}, "missing 10"},
		"nothing":       {http.Header{}, nil, "missing 10"},
		"another shape": {http.Header{}, []string{`{"usage":[{"total_tokens":25}]}`}, "missing 10"},
		"too long":      {http.Header{}, []string{body[:5], long, body[5:]}, "invalid 10"},
		"a line too long": {http.Header{"Content-Type": {"text/event-stream"}},
			[]string{"data: ", long, "\n\ndata: " + body + "\n\n"}, "more 25"},
		"an event too long": {http.Header{"Content-Type": {"text/event-stream"}},
			[]string{strings.Repeat("data: "+strings.Repeat(" ", 1000)+"\n", 2000), "data: " + body + "\n\n"},
			"missing 10"},
		"many short lines": {http.Header{"Content-Type": {"text/event-stream"}},
			[]string{strings.Repeat(": x\n", 3<<20), "data: ", body, "\n\n"}, "more 25"},
	} {
		for range 30 { // more than may be buffered, if anything stayed
			s := newSettling(t, "json usage.total_tokens")
			serve.ReadHeaders(200, test.header, s.Settling)
			for _, part := range test.parts {
				s.Body([]byte(part))
			}
			if got := s.used(t); got != test.want {
				t.Fatalf("%s: %s, want %s", name, got, test.want)
			}
		}
	}
	await.Within(t, time.Minute, "the memory", func() bool {
		s := newSettling(t, "json usage.total_tokens")
		serve.ReadHeaders(200, http.Header{}, s.Settling)
		s.Body([]byte(`{"text":"` + long[:4<<20-100] + `","usage":{"total_tokens":25}}`))
		return s.used(t) == "more 25"
	})
}

// TestAResponseThatNeverCameIsSettledByItsError checks that the status of the error counts, with an empty
// body.
func TestAResponseThatNeverCameIsSettledByItsError(t *testing.T) {
	for text, want := range map[string]string{"bytes": "less 0", "status 502 = 7, else 0": "less 7",
		"header X-Tokens": "less 0"} {
		s := newSettling(t, text)
		if got := s.usedAfter(t, 502); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// A cost other than a whole number leaves the charge unchanged. The log has a line once a minute, with the
// header and its value.
func TestTheLogNamesACostThatIsNone(t *testing.T) {
	for value, shown := range map[string]string{"0.0042": `"0.0042"`, "": `missing`,
		strings.Repeat("9", 5000): `"` + strings.Repeat("9", 40) + `…"`} {
		s := newSettling(t, "header X-Cost")
		var lines []host.Line
		site := &serve.Site{Store: s.store, Log: func(line host.Line) { lines = append(lines, line) }}
		how, err := settings.ParseSettle("header X-Cost")
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			decisions := []ratelimit.Decision{{Allowed: true, DecidedAt: 1}}
			one := serve.NewSettling(site,
				&serve.Request{HTTP: httptest.NewRequest(http.MethodGet, "/", nil),
					Limits: &serve.LimitSet{Settles: []*settings.Settle{how}},
					Hits:   []ratelimit.Hit{s.hit}, Decisions: decisions})
			serve.ReadHeaders(http.StatusOK, http.Header{"X-Cost": {value}}, one)
			one.End(0, http.Header{})
		}
		if want := "settle header X-Cost: " + shown + ": must be a whole number"; len(lines) != 1 ||
			lines[0].Prefix != "p" || !strings.HasPrefix(lines[0].Err.Error(), want) {
			t.Errorf("%.50s: %v, want one line with %s", value, lines, want)
		}
		if got := s.used(t); got != "missing 10" {
			t.Errorf("%.50s: %s, want what was charged", value, got)
		}
	}
	var sampler host.Sampler
	begin := time.Unix(1800000000, 0)
	for after, want := range []string{0: "0 true", 1: "0 false", 59: "0 false", 60: "2 true", 61: "0 false"} {
		if want == "" {
			continue
		}
		if dropped, ok := sampler.Next(begin.Add(time.Duration(after)*time.Second),
			time.Minute); fmt.Sprint(dropped, " ", ok) != want {
			t.Errorf("after %d s: %d, %t; want %s", after, dropped, ok, want)
		}
	}
}

// No client gets a header with a cost, even without a decision.
func TestAHeaderWithACostIsRemovedWithoutADecision(t *testing.T) {
	how, err := settings.ParseSettle("header X-Tokens")
	if err != nil {
		t.Fatal(err)
	}
	hits := []ratelimit.Hit{{Limit: &ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour}, Key: "k",
		Cost: 1}}
	s := serve.NewSettling(&serve.Site{},
		&serve.Request{HTTP: httptest.NewRequest(http.MethodGet, "/", nil),
			Limits: &serve.LimitSet{Settles: []*settings.Settle{how}}, Hits: hits,
			Decisions: make([]ratelimit.Decision, 1)})
	for _, h := range []http.Header{{"X-Tokens": {"5"}}, {"Trailer:X-Tokens": {"5"}}} {
		if serve.ReadHeaders(http.StatusOK, h, s); len(h) > 0 {
			t.Error(h)
		}
	}
	s.End(0, http.Header{})
}

// If the response determines the cost, a response of 5xx, or none, costs nothing. If the client left, the
// charge stays.
func TestAFailedAnswerCostsNothing(t *testing.T) {
	for _, how := range []string{"header X-Tokens", "json usage.total"} {
		for _, c := range []struct {
			name   string
			status int // 0 is none
			failed int
			leaves bool
			want   string
		}{
			{"an answer of 502 with a cost", 502, 0, false, "less 0"},
			{"no answer", 0, 504, false, "less 0"},
			{"an answer of 404 without a cost", 404, 0, false, "missing 10"},
			{"a client that left before an answer", 0, 502, true, "missing 10"},
			{"a client that left before the end of an answer", 200, 502, true, "missing 10"},
			{"an answer of 503 to a client that left", 503, 0, true, "less 0"},
		} {
			s := newSettling(t, how)
			if c.status != 0 {
				h := http.Header{}
				if c.status >= 500 {
					h.Set("X-Tokens", "7")
				}
				serve.ReadHeaders(c.status, h, s.Settling)
			}
			if c.leaves {
				s.leave()
			}
			if got := s.usedAfter(t, c.failed); got != c.want {
				t.Errorf("%s, %s: %s, want %s", how, c.name, got, c.want)
			}
		}
	}
}
