package serve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
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
	if err := serve.Decide(s, q); err != nil {
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

// A request is charged a quarter of its length, and the output that it names, and the upstream gets its body.
// Batches are refused on each path that takes them, unless the limit lets them pass. Binary streams always
// are. What limits of tokens do not have to read passes as it comes, and what is refused anyway is not read.
// The lines of the transcript are:
//
// body BODY                           a body, quoted if it is a Go string, where x{9} is nine x
// path PATH                           the path of a POST, before and after the limit lets batches pass
// unread MODE METHOD LENGTH ENCODING  a request with a body that fails the test when it is read
func TestRequestIsChargedWhatItAsksFor(t *testing.T) {
	golden.ReplayLines(t, "testdata/uploads.txt", func(t *testing.T, kind, text string) string {
		s := uploadSite(t, "enforce")
		switch kind {
		case "body":
			return chargedFor(t, text)
		case "path":
			results := []string{}
			for _, passes := range []bool{false, true} {
				address, err := url.Parse(text)
				if err != nil {
					t.Fatal(err)
				}
				s.Zones[0].CostSource.BatchAPI = passes
				q := post(strings.NewReader("{}"), 2)
				q.HTTP.URL = address
				results = append(results, decided(t, s, q))
			}
			return strings.Join(results, " | ")
		}
		words := strings.SplitN(text, " ", 4)
		length, err := strconv.ParseInt(words[2], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		q := post(unread{t}, length)
		q.HTTP.Method = words[1]
		if len(words) > 3 {
			q.HTTP.Header.Set("content-encoding", words[3])
		}
		return decided(t, uploadSite(t, words[0]), q)
	})
}

var repeated = regexp.MustCompile(`x\{(\d+)\}`)

// chargedFor returns what a request with a body is charged, or its refusal, whether its length is known or
// not.
func chargedFor(t *testing.T, body string) (result string) {
	t.Helper()
	if unquoted, err := strconv.Unquote(body); err == nil {
		body = unquoted
	}
	body = repeated.ReplaceAllStringFunc(body, func(x string) string {
		n, _ := strconv.Atoi(x[2 : len(x)-1]) // digits
		return strings.Repeat("x", n)
	})
	for i, length := range []int64{int64(len(body)), -1} {
		q := post(strings.NewReader(body), length)
		got := decided(t, uploadSite(t, "enforce"), q)
		if i == 0 {
			result = got
		}
		check.Equal(t, fmt.Sprintf("%.30s with length %d", body, length), got, result)
		if q.Outcome.Status != 0 {
			continue
		}
		passed, err := io.ReadAll(q.HTTP.Body)
		if err != nil || string(passed) != body || q.HTTP.ContentLength != length {
			t.Errorf("%.30s: the upstream gets %.30q, %v, with length %d, want %d", body, passed, err,
				q.HTTP.ContentLength, length)
		}
	}
	return result
}

// unread fails the test when it is read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
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
		q.HasVerdict = true
		q.Verdict = policy.Verdict{
			Hits: []ratelimit.Hit{{Limit: limit, Key: "k", Cost: 1, Independent: true}},
			Terms: []*policy.Terms{{Shadow: true, Quota: 100,
				CostSource: &option.CostSource{Unit: option.Money}}},
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

// A route for errors, to which a request comes that was refused for its body, has no body.
func TestRefusedBodiesAreGone(t *testing.T) {
	s := uploadSite(t, "enforce")
	q := post(strings.NewReader(`{"n":1,"n":2}`), 13)
	check.Equal(t, "the first handler", decided(t, s, q), "400 Ambiguous body")
	q.Flight.End()
	next := post(q.HTTP.Body, 13)
	next.Earlier, _ = q.HTTP.Body.(*serve.Upload)
	check.Equal(t, "the next handler", decided(t, s, next), "502 An earlier attempt has read the body")
}

// A batch waits only for bodies that are read soon. If a panic ends that, the request has no decision.
func TestBatchWaitsForNoLongBody(t *testing.T) {
	s := uploadSite(t, "enforce")
	s.OnError = settings.Deny
	many := strings.Repeat(",1", 200)
	for body, want := range map[string]bool{
		`{"n":1,"n":2}`:                            true,
		`{"n":1,"n":2,"x":[1` + many + `]}`:        false,
		`{"n":1,"n":2,"x":"` + many[:60] + `"}`:    true,
		"\ufeff" + `{"n":1,"n":2}`:                 false,
		`{"n":1,"n":"` + strings.Repeat("x", 5000): false,
	} {
		q := post(strings.NewReader(body), int64(len(body)))
		q.Site, q.Clients = s, s.Clients
		if _, err := serve.FindLimits(q); err != nil {
			t.Fatal(err)
		}
		check.Equal(t, fmt.Sprintf("the batch waits for %.20q", body), serve.ReadUpload(q), want)
		if !want {
			check.Equal(t, "its refusal", q.Outcome.Text(), "Ambiguous body")
			continue
		}
		q.Call = batch.NewCall()
		q.Call.Owner = q
		at := q.HTTP.URL
		q.HTTP.URL = nil
		q.Call.Err = batch.PanicError(func() { serve.FillCalls([]*batch.Call{q.Call}) })
		q.HTTP.URL = at
		serve.FinishCalls([]*batch.Call{q.Call})
		check.Equal(t, fmt.Sprint("after ", q.Call.Err), q.Outcome.Status, http.StatusServiceUnavailable)
	}
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

// The fields that a provider sends of its own account are removed, and those of another limit's refusal stay.
func TestFieldsOfProvidersDoNotPass(t *testing.T) {
	q := post(strings.NewReader("{}"), 2)
	check.Equal(t, "the charge", decided(t, uploadSite(t, "enforce"), q), "501")
	for status, want := range map[int]string{
		200: "map[Content-Type:[x] Retry-After:[3]]",
		429: "map[Content-Type:[x] Retry-After:[3] X-Ratelimit-Limit:[9]]",
	} {
		h := http.Header{"X-Ratelimit-Limit": {"9"}, "X-Ratelimit-Remaining-Requests": {"7"},
			"x-ratelimit-reset-tokens": {"1s"}, "Anthropic-Ratelimit-Tokens-Limit": {"5"},
			"Retry-After": {"3"}, "Content-Type": {"x"}}
		serve.ReadHeaders(status, h, q.Settling)
		check.Equal(t, fmt.Sprint("status ", status), fmt.Sprint(h), want)
	}
}
