package serve_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/store/memory"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// settling is a request of cost 10 that passed a limit with the setting settle.
type settling struct {
	*serve.Settling
	store    ratelimit.Store
	hit      ratelimit.Hit
	outcomes chan string
	leave    func() // closes the client's connection
}

// settlingOn returns the settlement of a hit on a site, by the setting text. ctx is the client's.
func settlingOn(ctx context.Context, t testing.TB, site *serve.Site, method, text string, hit ratelimit.Hit,
	decision ratelimit.Decision) *serve.Settling {
	t.Helper()
	how, err := option.ParseCostSource(text)
	if err != nil {
		t.Fatal(err)
	}
	q := newRequest(site, httptest.NewRequestWithContext(ctx, method, "/", nil))
	q.Limits, q.Hits, q.Terms = &serve.LimitSet{}, []ratelimit.Hit{hit}, []*policy.Terms{{Settle: how}}
	q.Decisions = []ratelimit.Decision{decision}
	return serve.NewSettling(site, q)
}

func newSettling(t testing.TB, text string) *settling {
	t.Helper()
	return newSettlingOf(t, http.MethodGet, text)
}

// newSettlingOf returns a settling of a request with a method.
func newSettlingOf(t testing.TB, method, text string) *settling {
	t.Helper()
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
	site := &serve.Site{Store: store, Settled: func(_ string, outcome serve.SettledCost) {
		s.outcomes <- string(outcome)
	}}
	client, leave := context.WithCancel(context.Background())
	s.leave = leave
	s.Settling = settlingOn(client, t, site, method, text, s.hit, decisions[0])
	return s
}

// settledUnits ends the request, and returns the outcome of its settlement and the units counted after it.
func (s *settling) settledUnits(t testing.TB) string {
	t.Helper()
	return s.settledUnitsAfter(t, 0)
}

// settledUnitsAfter is like settledUnits, but the handler failed with a status other than 0.
func (s *settling) settledUnitsAfter(t testing.TB, failed int) string {
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

// The cost is in the last event that has the field, at whatever positions the stream is split.
func TestEventStreamIsReadInAnyParts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newSettling(t, "json usage.total_tokens")
		end := rapid.SampledFrom([]string{"\n", "\r\n", "\r"}).Draw(rt, "end")
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
			_, _ = serve.Write(io.Discard, []byte(rest[:n]), s.Settling)
			rest = rest[n:]
		}
		if got := s.settledUnits(t); !strings.HasSuffix(got, fmt.Sprint(" ", want)) {
			rt.Fatalf("stream %q: got %s, want %d units", stream, got, want)
		}
	})
}

// A cost is read in each framing of JSON, and as any number that is whole.
func TestCostsAreReadInEachFraming(t *testing.T) {
	const body = `{"usage":{"total_tokens":25}}`
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write([]byte(body)) // to memory
	_ = w.Close()
	for name, test := range map[string]struct{ encoding, body, want string }{
		"gzip":                  {"gzip", packed.String(), "more 25"},
		"a byte order mark":     {"", "\ufeff" + body, "more 25"},
		"a list, the last":      {"", `[{"usage":{"total_tokens":7}},` + body + "]", "more 25"},
		"lines, the last":       {"", `{"usage":{"total_tokens":7}}` + "\n" + body, "more 25"},
		"a fraction of 0":       {"", `{"usage":{"total_tokens":77.0}}`, "more 77"},
		"a fraction":            {"", `{"usage":{"total_tokens":77.5}}`, "invalid 10"},
		"more than any request": {"", `{"usage":{"total_tokens":1e17}}`, "invalid 10"},
	} {
		s := newSettling(t, "json usage.total_tokens")
		serve.ReadHeaders(200, http.Header{"Content-Encoding": {test.encoding}}, s.Settling)
		for i := range len(test.body) {
			_, _ = serve.Write(io.Discard, []byte(test.body[i:i+1]), s.Settling)
		}
		check.Equal(t, name, s.settledUnits(t), test.want)
	}
}

// A body that is too long, broken or of another type leaves the charge of 10 unchanged. All buffers become
// free again, so that a long body can be read at the end.
func TestBodiesAreReadWithinBounds(t *testing.T) {
	const body = `{"usage":{"total_tokens":25}}`
	long := strings.Repeat(" ", 4<<20)
	for name, test := range map[string]struct {
		header http.Header
		parts  []string
		want   string
	}{
		"no type": {parts: []string{body}, want: "more 25"},
		"identity": {
			header: http.Header{"Content-Encoding": {"identity"}}, parts: []string{body}, want: "more 25",
		},
		"no gzip": {
			header: http.Header{"Content-Encoding": {"gzip"}}, parts: []string{body}, want: "invalid 10",
		},
		"another encoding": {
			header: http.Header{"Content-Encoding": {"br"}}, parts: []string{body}, want: "invalid 10",
		},
		"html": {
			header: http.Header{"Content-Type": {"text/html"}}, parts: []string{body}, want: "missing 10",
		},
		"broken":        {parts: []string{body[:20]}, want: "missing 10"},
		"another shape": {parts: []string{`{"usage":[{"total_tokens":25}]}`}, want: "missing 10"},
		"too long":      {parts: []string{body[:5], long, body[5:]}, want: "invalid 10"},
		"a line too long": {
			header: http.Header{"Content-Type": {"text/event-stream"}},
			parts:  []string{"data: ", long, "\n\ndata: " + body + "\n\n"}, want: "more 25",
		},
		"an event too long": {
			header: http.Header{"Content-Type": {"text/event-stream"}},
			parts: []string{strings.Repeat("data: "+strings.Repeat(" ", 1000)+"\n", 5000),
				"data: " + body + "\n\n"},
			want: "missing 10",
		},
		"many short lines": {
			header: http.Header{"Content-Type": {"text/event-stream"}},
			parts:  []string{strings.Repeat(": x\n", 3<<20), "data: ", body, "\n\n"}, want: "more 25",
		},
	} {
		for range 30 { // more than may be buffered at the same time
			s := newSettling(t, "json usage.total_tokens")
			serve.ReadHeaders(200, test.header, s.Settling)
			for _, part := range test.parts {
				_, _ = serve.Write(io.Discard, []byte(part), s.Settling)
			}
			check.Equal(t, name, s.settledUnits(t), test.want)
		}
	}
	await.Within(t, time.Minute, "the free memory", func() bool {
		s := newSettling(t, "json usage.total_tokens")
		serve.ReadHeaders(200, http.Header{}, s.Settling)
		body := `{"text":"` + long[:4<<20-100] + `","usage":{"total_tokens":25}}`
		_, _ = serve.Write(io.Discard, []byte(body), s.Settling)
		return s.settledUnits(t) == "more 25"
	})
}

// With settle bytes, a request costs the body that its client gets. A handler may write one that the server
// or a writer in front does not send.
func TestBytesAreThoseThatClientsGet(t *testing.T) {
	for _, c := range []struct {
		method string
		status int
		want   string
	}{{"GET", 200, "less 5"}, {"GET", 206, "less 5"}, {"GET", 404, "less 5"}, {"HEAD", 200, "less 0"},
		{"GET", 304, "less 0"}, {"POST", 204, "less 0"}} {
		s := newSettlingOf(t, c.method, "bytes")
		serve.ReadHeaders(c.status, http.Header{"Content-Length": {"500"}}, s.Settling)
		_, _ = serve.Write(io.Discard, []byte("hello"), s.Settling)
		check.Equal(t, fmt.Sprint(c.method, " ", c.status), s.settledUnits(t), c.want)
	}
}

// If the handler fails without a response, the request is settled like a response with the status of the
// error and an empty body.
func TestMissingResponseIsSettledByItsError(t *testing.T) {
	for how, want := range map[string]string{"bytes": "less 0", "status 502 = 7, else 0": "less 7",
		"header X-Tokens": "less 0"} {
		s := newSettling(t, how)
		check.Equal(t, how, s.settledUnitsAfter(t, 502), want)
	}
}

// A client cannot pass a limit by leaving before the status is known.
func TestClientThatLeavesKeepsEstimateOfStatus(t *testing.T) {
	for how, want := range map[string]string{"status 401 = 1, else 0": "same 10",
		"status 401 499 = 7, else 0": "less 7"} {
		s := newSettling(t, how)
		s.leave()
		check.Equal(t, how, s.settledUnitsAfter(t, 502), want)
	}
}

// A cost other than a whole number leaves the charge unchanged. The log has a line once a minute, with the
// header and its value.
func TestInvalidCostIsLogged(t *testing.T) {
	for value, shown := range map[string]string{"0.0042": `"0.0042"`, "": `missing`,
		strings.Repeat("9", 5000): `"` + strings.Repeat("9", 40) + `…"`} {
		s := newSettling(t, "header X-Cost")
		var lines []string
		site := &serve.Site{Store: s.store,
			Log: func(l host.Line) { lines = append(lines, fmt.Sprint(l.Prefix, ": ", l.Err)) }}
		for range 3 {
			one := settlingOn(t.Context(), t, site, http.MethodGet, "header X-Cost", s.hit,
				ratelimit.Decision{Allowed: true, DecidedAt: 1})
			serve.ReadHeaders(http.StatusOK, http.Header{"X-Cost": {value}}, one)
			one.End(0, http.Header{})
		}
		want := "p: settle header X-Cost: " + shown + ": must be a whole number"
		if len(lines) != 1 || !strings.HasPrefix(lines[0], want) {
			t.Errorf("cost %.50q: got lines %q, want one with %s", value, lines, want)
		}
		check.Equal(t, fmt.Sprintf("cost %.50q", value), s.settledUnits(t), "missing 10")
	}
}

// A Sampler allows one line in each period, with the number of lines that it dropped before.
func TestSamplerAllowsOneLineAPeriod(t *testing.T) {
	var sampler host.Sampler
	for _, step := range []struct {
		second, dropped int64
		ok              bool
	}{
		{second: 0, ok: true}, {second: 1}, {second: 59}, {second: 60, dropped: 2, ok: true}, {second: 61},
	} {
		dropped, ok := sampler.Allow(time.Unix(1800000000+step.second, 0), time.Minute)
		if dropped != step.dropped || ok != step.ok {
			t.Errorf("after %d s: Allow = %d, %t, want %d, %t", step.second, dropped, ok, step.dropped,
				step.ok)
		}
	}
}

// With names, a Sampler allows one line for each of ten names in a period.
func TestSamplerAllowsTenNamesAPeriod(t *testing.T) {
	var sampler host.Sampler
	for _, period := range []struct {
		second, allowed, dropped int64
	}{{0, 10, 1}, {59, 0, 0}, {60, 10, 16}} {
		allowed, before := int64(0), int64(0)
		for i := range 13 {
			name := fmt.Sprint(max(0, i-1)) // the first one twice
			dropped, ok := sampler.AllowName(time.Unix(1800000000+period.second, 0), time.Minute, name)
			if ok {
				allowed++
				before += dropped
			}
		}
		check.Equal(t, fmt.Sprint("lines after ", period.second, " s"), fmt.Sprint(allowed, " ", before),
			fmt.Sprint(period.allowed, " ", period.dropped))
	}
}

// The client does not receive the header with the cost, even if there was no decision.
func TestCostHeaderIsRemovedWithoutDecision(t *testing.T) {
	limit := &ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour}
	hit := ratelimit.Hit{Limit: limit, Key: "k", Cost: 1}
	s := settlingOn(t.Context(), t, &serve.Site{}, http.MethodGet, "header X-Tokens", hit,
		ratelimit.Decision{})
	for _, h := range []http.Header{{"X-Tokens": {"5"}}, {"Trailer:X-Tokens": {"5"}}} {
		if serve.ReadHeaders(http.StatusOK, h, s); len(h) > 0 {
			t.Errorf("got headers %v, want none", h)
		}
	}
	s.End(0, http.Header{})
}

// If the response determines the cost, a request with a 5xx response, or without a response, costs nothing.
// If the client left before its response, the charge stays.
func TestFailedResponseCostsNothing(t *testing.T) {
	for _, how := range []string{"header X-Tokens", "json usage.total"} {
		for _, c := range []struct {
			name   string
			status int // 0 without a response
			failed int
			leaves bool
			want   string
		}{
			{name: "a response of 502 with a cost", status: 502, want: "less 0"},
			{name: "no response", failed: 504, want: "less 0"},
			{name: "a response of 404 without a cost", status: 404, want: "missing 10"},
			{name: "a client that left before a response", failed: 502, leaves: true, want: "missing 10"},
			{
				name: "a client that left before the end of a response", status: 200, failed: 502,
				leaves: true, want: "missing 10",
			},
			{name: "a response of 503 to a client that left", status: 503, leaves: true, want: "less 0"},
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
			check.Equal(t, fmt.Sprintf("%s, %s", how, c.name), s.settledUnitsAfter(t, c.failed), c.want)
		}
	}
}
