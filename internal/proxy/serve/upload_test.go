package serve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// post returns a request with a body. Without a known length, the body is chunked.
func post(body io.Reader, length int64) *serve.Request {
	r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", body)
	r.ContentLength = length
	q := &serve.Request{Conn: httptest.NewRecorder()}
	q.HTTP = r
	return q
}

// decided decides a request, and returns what it is charged, or its refusal.
func decided(t *testing.T, s *serve.Site, q *serve.Request) string {
	t.Helper()
	if err := serve.Handle(s, q); err != nil {
		t.Error(err)
	}
	if q.Outcome.Status != 0 {
		return fmt.Sprint(q.Outcome.Status, " ", q.Outcome.Text())
	}
	return fmt.Sprint(q.Hits[0].Cost)
}

// uploadSite returns a site with a limit of 1,000,000 tokens, and an output of 500, in a mode.
func uploadSite(t *testing.T, mode string) *serve.Site {
	t.Helper()
	return newMemorySite(t, "unit", "tokens", "output", "500", "mode", mode).Site
}

// A request is charged a quarter of its length, and the output that it names. The upstream gets its body.
func TestRequestIsChargedWhatItAsksFor(t *testing.T) {
	for body, want := range map[string]string{
		`{"max_tokens":7}`:                     "11",
		`{"max_tokens":7,"n":3}`:               "27",
		`{"max_tokens":9e99}`:                  "1000000",
		`{"max_tokens":0}`:                     "504",
		`{"messages":[]}`:                      "504",
		"no JSON":                              "502",
		"":                                     "500",
		`{"background":true}`:                  "400 No answer in the background possible",
		`{"n":1,"N":2}`:                        "400 Ambiguous body",
		`{"n":1`:                               "400 Ambiguous body",
		strings.Repeat("x", 64<<10):            "16884",
		strings.Repeat("x", 64<<10) + "x":      "413 Body too long: at most 65536 bytes",
		`{"x":"` + strings.Repeat("x", 40<<10): "400 Ambiguous body",
		`{"max_tokens":1}` + "\r\n\t ":         "6",
	} {
		for _, length := range []int64{int64(len(body)), -1} {
			q := post(strings.NewReader(body), length)
			what := fmt.Sprintf("%.30s with length %d", body, length)
			got := decided(t, uploadSite(t, "enforce"), q)
			check.Equal(t, what, got, want)
			if q.Outcome.Status != 0 {
				continue
			}
			passed, err := io.ReadAll(q.HTTP.Body)
			if err != nil || string(passed) != body || q.HTTP.ContentLength != length {
				t.Errorf("%s: the upstream gets %.30q, %v, with length %d", what, passed, err,
					q.HTTP.ContentLength)
			}
		}
	}
}

// Batches are refused on each path that takes them, unless the limit lets them pass. Binary streams always
// are.
func TestBatchesAndBinaryStreamsAreRefused(t *testing.T) {
	const batch = "400 No batch possible: a limit cannot count its answers"
	const binary = "400 No binary event stream possible: a limit cannot count it"
	for path, want := range map[string]string{
		"/v1/batches": batch, "/V1//Batches/": batch, "/v1/x/../batches": batch, "/openai/v1/batches": batch,
		"/v1/messages/batches": batch, "/openai/deployments/m/batches": batch, "/v1/batch/jobs": batch,
		"/v1beta/models/m:batchGenerateContent": batch, "/v1beta/models/m%3AbatchGenerateContent": batch,
		"/v1beta/models/m:asyncBatchEmbedContent": batch, "/v1/%62atches": batch, "/v1%2Fbatches;x": batch,
		"/v1/batches%20": batch, "/v1/batches%252F": batch,
		"/v1/projects/p/locations/l/batchPredictionJobs": batch,
		"/v1/batches/b1/cancel":                          "501", "/v1beta/models/m:batchEmbedContents": "501",
		"/v1/chat/completions": "501", "/model/m/converse": "501",
		"/model/m/converse-stream": binary, "/model/a%2Fb/invoke-with-response-stream": binary,
	} {
		s := uploadSite(t, "enforce")
		for _, passes := range []bool{false, true} {
			s.Zones[0].Settle.Batches = passes
			q := post(strings.NewReader("{}"), 2)
			address, err := url.Parse(path)
			if err != nil {
				t.Fatal(err)
			}
			q.HTTP.URL = address
			if passes && want == batch {
				want = "501"
			}
			check.Equal(t, fmt.Sprint(path, " passes: ", passes), decided(t, s, q), want)
		}
	}
}

// unread fails the test when it is read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

// What limits of tokens do not have to read passes as it comes, and what is refused anyway is not read.
func TestBodiesThatNeedNoReading(t *testing.T) {
	for _, c := range []struct {
		mode, method, header string
		length               int64
		want                 string
	}{
		{"enforce", http.MethodPut, "", 40, "510"},
		{"enforce", http.MethodPut, "", -1, "500"},
		{"shadow", http.MethodPost, "", 1 << 30, "1000000"},
		{"enforce", http.MethodPost, "", 64<<10 + 1, "413 Body too long: at most 65536 bytes"},
		{"enforce", http.MethodPost, "gzip", 40, "400 Ambiguous body"},
		{"enforce", http.MethodPost, "identity, br", 40, "400 Ambiguous body"},
	} {
		q := post(unread{t}, c.length)
		q.HTTP.Method = c.method
		if c.header != "" {
			q.HTTP.Header.Set("content-encoding", c.header)
		}
		check.Equal(t, fmt.Sprint(c), decided(t, uploadSite(t, c.mode), q), c.want)
	}
}

// broken is a body that ends with an error.
type broken struct{ err error }

func (b broken) Read(part []byte) (int, error) { return copy(part, `{"n":`), b.err }

func TestIncompleteBodiesAreRefused(t *testing.T) {
	for err, want := range map[error]string{
		io.ErrUnexpectedEOF:           "408 Incomplete body",
		errors.New("reset"):           "408 Incomplete body",
		&http.MaxBytesError{Limit: 9}: "413 Body too long: at most 9 bytes",
	} {
		check.Equal(t, err.Error(), decided(t, uploadSite(t, "enforce"), post(broken{err}, 100)), want)
	}
}

// slow is a body that gets a byte each 40 s, and fails after its deadline.
type slow struct {
	http.ResponseWriter
	late chan bool
}

func (s slow) SetReadDeadline(time.Time) error {
	close(s.late)
	return nil
}

func (s slow) Read(part []byte) (int, error) {
	select {
	case <-s.late:
		return 0, errors.New("timeout")
	case <-time.After(40 * time.Second):
		return copy(part, "x"), nil
	}
}

// A body has a minute, which does not count for the decision.
func TestSlowBodiesAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := uploadSite(t, "enforce")
		began := time.Now()
		body := slow{late: make(chan bool)}
		q := post(body, 100)
		q.Conn = body
		check.Equal(t, "a slow body", decided(t, s, q), "408 Incomplete body")
		check.Equal(t, "after", time.Since(began), time.Minute)
		check.Equal(t, "the time of the decision", time.Since(q.Began), time.Duration(0))
		q = post(io.MultiReader(io.LimitReader(body, 0), strings.NewReader("{}")), 2)
		check.Equal(t, "another", decided(t, s, q), "501")
	})
}

// A shadow rule with a limit in money reads bodies, but refuses none of them, and ends none.
func TestShadowLimitsInMoneyPassSlowBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := &ratelimit.Limit{Prefix: "rule/r/l", Events: 100, Window: time.Hour,
			Algorithm: ratelimit.FixedWindow}
		s := uploadSite(t, "enforce")
		s.Zones = nil
		s.Prepare()
		body := slow{late: make(chan bool)}
		q := post(io.LimitReader(body, 4), 4)
		q.Conn = body
		q.Asked = true
		q.Verdict = policy.Verdict{
			Hits: []ratelimit.Hit{{Limit: limit, Key: "k", Cost: 1, Independent: true}},
			Terms: []*policy.Terms{{Shadow: true, Quota: 100,
				Settle: &option.CostSource{Unit: option.Money}}},
		}
		began := time.Now()
		check.Equal(t, "the charge", decided(t, s, q), "1")
		check.Equal(t, "after", time.Since(began), 80*time.Second)
		passed, err := io.ReadAll(q.HTTP.Body)
		if err != nil || string(passed) != "xxxx" {
			t.Errorf("the upstream gets %q, %v, want the whole body", passed, err)
		}
	})
}

// attempt decides a request of a client, whose body was read by an earlier attempt, and returns the request
// and what its upstream gets, or its refusal.
func attempt(t *testing.T, s *serve.Site, client context.Context, body io.Reader,
	length int64) (*serve.Request, string) {
	t.Helper()
	q := post(body, length)
	q.HTTP = q.HTTP.WithContext(client)
	if outcome := decided(t, s, q); q.Outcome.Status != 0 {
		return q, outcome
	}
	passed, err := io.ReadAll(q.HTTP.Body)
	return q, fmt.Sprint(string(passed), err)
}

// mirrored is the context that Traefik gives a mirrored request.
type mirrored struct{ context.Context }

func (mirrored) Done() <-chan struct{} { return make(chan struct{}) }

// A body that no upstream has read is there for another attempt until the client's request ends. Another
// attempt for a body that was read is refused.
func TestUnreadBodiesOutliveAttempts(t *testing.T) {
	const body = `{"max_tokens":7}`
	for _, length := range []int64{int64(len(body)), -1} {
		s := uploadSite(t, "enforce")
		client, leave := context.WithCancel(t.Context())
		read := strings.NewReader(body)
		for range 2 {
			first := post(read, length)
			first.HTTP = first.HTTP.WithContext(client)
			first.Writer = first.Conn // as in Traefik
			check.Equal(t, "the charge", decided(t, s, first), "11")
			_ = first.HTTP.Body.Close()
			ended := make(chan error)
			go func() { // a transport may read late
				_, err := first.HTTP.Body.Read(make([]byte, 9))
				ended <- err
			}()
			first.Flight.End()
			check.Equal(t, "a late read", <-ended, http.ErrBodyReadAfterClose)
		}
		q, got := attempt(t, s, client, read, length)
		check.Equal(t, "the body of another attempt", got, body+"<nil>")
		q.Flight.End()
		for range 2 {
			q, got = attempt(t, s, client, read, length)
			check.Equal(t, "a third attempt", got, "502 An earlier attempt has read the body")
			q.Flight.End()
		}
		_, got = attempt(t, s, client, strings.NewReader(body), length)
		check.Equal(t, "an attempt that has the body again", got, body+"<nil>")
		leave()
	}
	s := uploadSite(t, "enforce")
	client, leave := context.WithCancel(t.Context())
	send := func(client context.Context) string {
		q := post(strings.NewReader(strings.Repeat("x", 64<<10)), 64<<10)
		q.HTTP = q.HTTP.WithContext(client)
		defer func() { q.Flight.End() }()
		return decided(t, s, q)
	}
	check.Equal(t, "a mirrored request", send(mirrored{t.Context()}), "16884")
	second, end := context.WithCancel(t.Context())
	defer end()
	check.Equal(t, "an attempt", send(client), "16884")
	check.Equal(t, "an attempt of another request", send(second), "16884")
	check.Equal(t, "a third request", send(t.Context()), "503 Service unavailable")
	leave()
	await.Within(t, time.Minute, "the end of the first", func() bool { return send(t.Context()) == "16884" })
}

// A client has two of 32 bodies that are held. A body is no longer held when the request ends, or before that
// when the upstream has read or closed it. A refusal holds nothing.
func TestHeldBodiesAreBounded(t *testing.T) {
	s := uploadSite(t, "enforce")
	send := func(host int) (string, *serve.Request) {
		q := post(strings.NewReader(strings.Repeat("x", 64<<10)), 64<<10)
		q.HTTP.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", host)
		return decided(t, s, q), q
	}
	passed := map[int]*serve.Request{}
	pass := func(host int) {
		t.Helper()
		outcome, q := send(host)
		check.Equal(t, fmt.Sprint("client ", host), outcome, "16884")
		passed[host] = q
	}
	refuse := func(host int) {
		t.Helper()
		outcome, q := send(host)
		check.Equal(t, fmt.Sprint("client ", host), outcome, "503 Service unavailable")
		check.Equal(t, "its wait", q.Outcome.RetrySeconds(), 1)
	}
	for host := range 32 {
		pass(host / 2)
		if host == 1 {
			refuse(0)
		}
	}
	refuse(16)
	passed[0].Flight.End()
	passed[0].Flight.End()
	pass(16)
	_, _ = passed[1].HTTP.Body.Read(make([]byte, 1))
	_ = passed[1].HTTP.Body.Close()
	if n, err := passed[1].HTTP.Body.Read(make([]byte, 9)); n != 0 || err == nil {
		t.Errorf("a closed body: got %d bytes, %v", n, err)
	}
	pass(1)
	if _, err := io.Copy(io.Discard, passed[2].HTTP.Body); err != nil {
		t.Error(err)
	}
	pass(2)
	refuse(3)
}
