package serve_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/store/memory"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/llm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// memorySite is a site in memory with a zone, which counts by the key k.
type memorySite struct {
	*serve.Site
	t     testing.TB
	costs chan string
	lines []string
}

// newMemorySite returns a site with a limit of 1,000,000 units an hour, for more settings of its zone, which
// are names and values in turn.
func newMemorySite(t testing.TB, zone ...string) *memorySite {
	t.Helper()
	values := settings.Values{"prefix": "p", "limit": "1000000 1h", "algorithm": "fixed_window", "key": "k"}
	for i := 0; i < len(zone); i += 2 {
		values[zone[i]] = zone[i+1]
	}
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	z, err := serve.NewZone(values, "", parse)
	if err != nil {
		t.Fatal(err)
	}
	s := &memorySite{t: t, costs: make(chan string, 9)}
	address := func(r *http.Request) (netip.Addr, bool) {
		address, _ := netip.ParseAddrPort(r.RemoteAddr)
		return address.Addr(), false
	}
	s.Site = &serve.Site{Store: store, Handler: settings.Handler{Timeout: time.Second, MaxBody: 64 << 10},
		Zones: []*serve.Zone{z}, Clients: &reading.Clients{Address: address},
		OnSettled: func(_ string, cost serve.SettledCost) { s.costs <- string(cost) },
		Log:       func(l host.Line) { s.lines = append(s.lines, fmt.Sprint(l.Prefix, ": ", l.Err)) }}
	s.Prepare()
	return s
}

// decide decides a request with a body of 401 bytes.
func (s *memorySite) decide(ctx context.Context, method string) *serve.Request {
	s.t.Helper()
	q := newRequest(s.Site, httptest.NewRequestWithContext(ctx, method, "/", strings.NewReader(
		strings.Repeat("x", 401))))
	q.HTTP.Header.Set("Accept-Encoding", "gzip")
	if err := serve.Decide(s.Site, q); err != nil {
		s.t.Fatal(err)
	}
	return q
}

// used returns the counted units, after the settlement of a request if it has one.
func (s *memorySite) used(q *serve.Request) string {
	s.t.Helper()
	outcome := "-"
	if q.Settling != nil {
		outcome = <-s.costs
		serve.ReadHeaders(http.StatusContinue, nil, q.Settling) // waits until the units are released
	}
	decisions := make([]ratelimit.Decision, 1)
	hit := s.Zones[0].Hit
	hit.Key, hit.Peek, hit.Cost = "k", true, 1
	if err := s.Store.Take(context.Background(), time.Second, []ratelimit.Hit{hit}, decisions); err != nil {
		s.t.Fatal(err)
	}
	return fmt.Sprint(outcome, " ", hit.Limit.Events-decisions[0].Remaining)
}

// answered sends a response of status 200 in parts of a size, and returns the counted units.
func (s *memorySite) answered(q *serve.Request, h http.Header, body []byte, size int) string {
	s.t.Helper()
	serve.ReadHeaders(http.StatusOK, h, q.Settling)
	for part := range slices.Chunk(body, size) {
		_, _ = serve.Write(io.Discard, part, nil, q.Settling)
	}
	q.Settling.End(new(int), http.Header{})
	return s.used(q)
}

// newSettled returns a site of a largest limit with the setting settle, and a request of cost 10 that passed.
func newSettled(t testing.TB, settle string) (*memorySite, *serve.Request) {
	t.Helper()
	s := newMemorySite(t, "settle", settle, "cost", "10", "limit", "999999999999999 1h")
	return s, s.decide(t.Context(), http.MethodGet)
}

// What a request costs in the end. The lines of the transcript are:
//
// settle HOW ~ REQUEST ~ BODY ~ HEADERS   for a zone with the setting settle and the cost 10
// unit UNIT ~ REQUEST ~ BODY ~ HEADERS    for a zone in a unit, with an output of 500
//
// REQUEST is a method, and the status of the response, or - without one, because the upstream has failed.
// Then the client has left before the response, or leaves during it, or a later handler reads the rest of the
// request. The body of the response is zipped, json, or a stream of lines. The result is the charge before,
// what the cost is called, and the units after it.
func TestAnswersSettleTheirRequests(t *testing.T) {
	golden.ReplayLines(t, "testdata/settled.txt", func(t *testing.T, kind, text string) string {
		parts := append(strings.Split(text, " ~ "), "")
		words := strings.Fields(parts[1])
		is := func(word string) bool { return slices.Contains(words, word) }
		zone := []string{"settle", parts[0], "cost", "10"}
		if kind == "unit" {
			zone = []string{"unit", parts[0], "output", "500"}
		}
		s := newMemorySite(t, zone...)
		client, leave := context.WithCancel(t.Context())
		defer leave()
		q := s.decide(client, words[0])
		if q.Settling == nil {
			return s.used(q)
		}
		charge := fmt.Sprint(q.Hits[0].Cost, " ")
		if is("left") {
			leave()
		}
		h, body := http.Header{}, []byte(parts[2])
		for _, line := range parts[min(3, len(parts)):] {
			if name, value, found := strings.Cut(line, ": "); found {
				h.Set(name, value)
			}
		}
		switch {
		case is("zipped"):
			body = llm.Gzip(body)
		case is("json"):
			h.Set("Content-Type", "application/json")
		case is("stream"):
			h.Set("Content-Type", "text/event-stream")
			if parts[2] != "" {
				body = []byte("data: " + strings.ReplaceAll(parts[2], "\n", "\n\ndata: ") + "\n\n")
			}
		}
		failed := http.StatusBadGateway
		if status, err := strconv.Atoi(words[1]); err == nil {
			failed = 0
			serve.ReadHeaders(status, h, q.Settling)
			for i := range body {
				_, _ = serve.Write(io.Discard, body[i:i+1], nil, q.Settling)
			}
		}
		if is("leaves") {
			leave()
		}
		q.Settling.End(&failed, h)
		if failed != 0 && q.Flight != nil {
			q.Flight.End()
			if is("rest") {
				_, _ = io.Copy(io.Discard, q.HTTP.Body)
			}
			leave()
		}
		return charge + s.used(q)
	})
}

// A body that is too long leaves the charge of 10 unchanged. All buffers become free again, so that a long
// body can be read at the end.
func TestBodiesAreReadWithinBounds(t *testing.T) {
	long := strings.Repeat(" ", 4<<20)
	read := func(text string) string {
		s, q := newSettled(t, "json usage.total_tokens")
		return s.answered(q, http.Header{"Content-Type": {"application/json"}},
			[]byte(`{"text":"`+text+`","usage":{"total_tokens":25}}`), 1<<16)
	}
	for range 30 { // more than may be buffered at the same time
		check.Equal(t, "too long", read(long), "invalid 10")
	}
	await.Within(t, time.Minute, "the free memory", func() bool { return read(long[100:]) == "more 25" })
}

// A cost other than a whole number leaves the charge unchanged. The log has a line once a minute, with the
// header and its value.
func TestInvalidCostIsLogged(t *testing.T) {
	for value, shown := range map[string]string{"0.0042": `"0.0042"`, "": `missing`,
		strings.Repeat("9", 5000): `"` + strings.Repeat("9", 40) + `…"`} {
		s, q := newSettled(t, "header X-Cost")
		for i := range 3 {
			check.Equal(t, fmt.Sprintf("cost %.50q", value), s.answered(q,
				http.Header{"X-Cost": {value}}, nil, 1), fmt.Sprint("invalid ", 10*(i+1)))
			q = s.decide(t.Context(), http.MethodGet)
		}
		want := "p: settle header X-Cost: " + shown + ": must be a whole number"
		if len(s.lines) != 1 || !strings.HasPrefix(s.lines[0], want) {
			t.Errorf("cost %.50q: got lines %q, want one with %s", value, s.lines, want)
		}
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

// The client does not receive the header with the cost, even if there was no decision.
func TestCostHeaderIsRemovedWithoutDecision(t *testing.T) {
	limit := &ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Hour}
	hit := ratelimit.Hit{Limit: limit, Key: "k", Cost: 1}
	q := newRequest(&serve.Site{}, httptest.NewRequest(http.MethodGet, "/", nil))
	q.Limits, q.Hits, q.Decisions = &serve.LimitSet{}, []ratelimit.Hit{hit}, make([]ratelimit.Decision, 1)
	q.Terms = []*policy.Terms{{CostSource: &option.CostSource{Header: "X-Tokens"}}}
	s := serve.NewSettling(q)
	for _, h := range []http.Header{{"X-Tokens": {"5"}}, {"Trailer:X-Tokens": {"5"}}} {
		if serve.ReadHeaders(http.StatusOK, h, s); len(h) > 0 {
			t.Errorf("got headers %v, want none", h)
		}
	}
	s.End(new(int), http.Header{})
}

// The upstream is asked for plain bodies only where a response is read. The log says once a minute what a
// stream needs.
func TestClientsOfOpenAIAreToldToIncludeUsage(t *testing.T) {
	s := newMemorySite(t, "unit", "tokens", "output", "500")
	for range 3 {
		q := s.decide(t.Context(), http.MethodPost)
		check.Equal(t, "Accept-Encoding", q.HTTP.Header.Get("Accept-Encoding"), "identity")
		h := http.Header{"Content-Type": {"text/event-stream"}}
		s.answered(q, h, []byte("data: [DONE]\n\n"), 100)
	}
	check.Equal(t, "lines", s.lines, "[p: unit tokens: missing: must be in the response: for a stream, "+
		"clients of OpenAI ask for it with stream_options.include_usage]")
	q := s.decide(t.Context(), http.MethodGet)
	check.Equal(t, "Accept-Encoding of GET", q.HTTP.Header.Get("Accept-Encoding"), "gzip")
}

// deadWriter is a writer that its server has taken back.
type deadWriter struct{ http.ResponseWriter }

func (deadWriter) FlushError() error { panic("the writer is flushed") }

// A proxy that stops does not use the writer of a response that has ended, or has become a WebSocket.
func TestStopUsesNoWriterThatIsTakenBack(t *testing.T) {
	for _, hijacked := range []bool{false, true} {
		s, q := newSettled(t, "json usage")
		q.Settling.Begin(deadWriter{httptest.NewRecorder()})
		serve.ReadHeaders(http.StatusOK, http.Header{}, q.Settling)
		_, _ = serve.Write(io.Discard, []byte(`{"usage":77}`), nil, q.Settling)
		if hijacked {
			serve.SettledConn(nil, q.Settling)
		} else {
			q.Settling.End(new(int), http.Header{}) // the body is read later
		}
		q.Settling.Stop()
		check.Equal(t, fmt.Sprint("hijacked: ", hijacked), s.used(q), "more 77")
	}
}

// serveBody sends n requests one after another to a server of a site whose responses have a body, and returns
// their statuses. The requests are those of a Traefik.
func (s *memorySite) serveBody(body string, n int) []int {
	s.t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := newRequest(s.Site, r)
		q.Writer = w
		if err := serve.Decide(s.Site, q); err != nil {
			s.t.Error(err)
		}
		if q.Flight != nil {
			defer q.Flight.End()
		}
		if q.Outcome.Status != 0 {
			w.WriteHeader(q.Status)
			return
		}
		serve.ReadHeaders(http.StatusOK, w.Header(), q.Settling)
		_, _ = serve.Write(w, []byte(body), nil, q.Settling)
		q.Settling.End(new(int), w.Header())
	}))
	defer server.Close()
	var statuses []int
	for range n {
		r, err := http.Post(server.URL, "application/json", strings.NewReader(`{"model":"m"}`))
		if err != nil {
			s.t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
		statuses = append(statuses, r.StatusCode)
	}
	return statuses
}

// A client that sends one request after another finds the last one settled. A response that is settled later
// is not taken for one whose client has left.
func TestClientFindsItsLastRequestSettled(t *testing.T) {
	const body = `{"usage":{"prompt_tokens":30,"completion_tokens":30,"total_tokens":60}}`
	s := newMemorySite(t, "unit", "tokens", "output", "5000", "limit", "1000 1h")
	check.Equal(t, "statuses of tokens", s.serveBody(body, 4), []int{200, 200, 200, 200})
	s = newMemorySite(t, "settle", "json usage.total_tokens", "limit", "100 1h")
	check.Equal(t, "statuses of costs", s.serveBody(body, 4), []int{200, 200, 429, 429})
	s = newMemorySite(t, "unit", "tokens")
	s.serveBody(`{"choices":["`+strings.Repeat("x", 20<<10)+`"]}`, 1)
	check.Equal(t, "cost of a long response", <-s.costs, "missing")
}
