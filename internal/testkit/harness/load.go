package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Load configures the requests to send. Requests bounds their number, and the context of Run bounds their
// time.
type Load struct {
	// Clients is the number of concurrent clients, each with one kept connection. 0 means 1.
	Clients int

	// Requests is the number of requests to send. 0 sends requests until the context ends.
	Requests int

	// Every is the time between the starts of two requests of all clients. 0 sends each client's next request
	// after its response.
	Every time.Duration

	// Request returns the ith request, from 0. It is called concurrently.
	Request func(i int) *http.Request

	// Replied, if not nil, is called with the reply to the ith request, concurrently.
	Replied func(i int, r Reply)
}

// Reply is the result of one request.
type Reply struct {
	Status  int       // 0 if Err is set
	Began   time.Time // the time at which the request was sent
	Took    time.Duration
	Err     error
	Started bool // false if the context ended first
}

// Result is the result of a load.
type Result struct {
	Status  map[int]int // the number of responses, by status
	Failed  int         // the number of requests without a response
	Sent    int
	Replies []Reply // in the order of the requests
}

// Run sends the load and waits for all responses. After the end of ctx, it sends no further requests.
func Run(ctx context.Context, l Load) *Result {
	clients := max(1, l.Clients)
	client, closeIdle := NewClient(clients)
	defer closeIdle()
	source := &tickets{load: &l, ctx: ctx, began: time.Now()}
	var wait sync.WaitGroup
	for range clients {
		wait.Go(func() {
			for {
				i, ok := source.next()
				if !ok {
					return
				}
				reply := send(client, l.Request(i))
				source.put(i, reply)
				if l.Replied != nil {
					l.Replied(i, reply)
				}
			}
		})
	}
	wait.Wait()
	return source.result()
}

// NewClient returns a client that keeps one connection for each of n callers, and follows no redirects.
func NewClient(n int) (client *http.Client, closeIdle func()) {
	transport := &http.Transport{
		MaxIdleConns:        n,
		MaxIdleConnsPerHost: n,
		DisableCompression:  true,
	}
	noRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: transport, Timeout: 30 * time.Second, CheckRedirect: noRedirect},
		transport.CloseIdleConnections
}

// send sends one request and reads the whole response, so that the connection can be reused.
func send(client *http.Client, request *http.Request) Reply {
	reply := Reply{Began: time.Now(), Started: true}
	response, err := client.Do(request)
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body)
		err = errors.Join(err, response.Body.Close())
	}
	reply.Took = time.Since(reply.Began)
	if err != nil {
		reply.Err = err
		return reply
	}
	reply.Status = response.StatusCode
	return reply
}

// Unheard reports whether err is the error of a request that Caddy may not have read: a connection that opens
// while a reload replaces the listener is closed before Caddy reads a request.
func Unheard(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, syscall.ECONNREFUSED)
}

// tickets assigns the numbers of requests and collects their replies.
type tickets struct {
	load  *Load
	ctx   context.Context
	began time.Time

	mu      sync.Mutex
	issued  int
	replies []Reply
}

// next waits until the next request is due, and returns its number.
func (t *tickets) next() (int, bool) {
	t.mu.Lock()
	i := t.issued
	if t.ctx.Err() != nil || t.load.Requests > 0 && i >= t.load.Requests {
		t.mu.Unlock()
		return 0, false
	}
	t.issued++
	t.replies = append(t.replies, Reply{})
	t.mu.Unlock()
	if wait := time.Until(t.began.Add(time.Duration(i) * t.load.Every)); t.load.Every > 0 && wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-t.ctx.Done():
			return 0, false
		}
	}
	return i, true
}

func (t *tickets) put(i int, r Reply) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.replies[i] = r
}

func (t *tickets) result() *Result {
	r := &Result{Status: map[int]int{}, Replies: t.replies}
	for i := range r.Replies {
		reply := &r.Replies[i]
		switch {
		case !reply.Started:
			continue
		case reply.Err != nil:
			r.Failed++
		default:
			r.Status[reply.Status]++
		}
		r.Sent++
	}
	return r
}

// Err returns the first failure of a request, or nil.
func (r *Result) Err() error {
	for i := range r.Replies {
		if r.Replies[i].Err != nil {
			return fmt.Errorf("request %d of %d (%d failed): %w", i, r.Sent, r.Failed, r.Replies[i].Err)
		}
	}
	return nil
}

// String formats the counts by status, as in "200×100 429×900".
func (r *Result) String() string {
	var parts []string
	for status, n := range r.Status {
		parts = append(parts, fmt.Sprintf("%d×%d", status, n))
	}
	sort.Strings(parts)
	if r.Failed > 0 {
		parts = append(parts, fmt.Sprintf("failed×%d", r.Failed))
	}
	return strings.Join(parts, " ")
}

// Get returns a GET request. headers has pairs of a name and a value. The header Host sets the request's
// host.
func Get(url string, headers ...string) *http.Request {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		panic(err) // a test passed a wrong URL
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if request.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			request.Host = headers[i+1]
		}
	}
	return request
}

// InLines returns the text before the first " ~ ", and a GET request with the lines of headers after it, such
// as X: a ~ Y: b. A quoted value is a Go string.
func InLines(t testing.TB, text string) (before string, r *http.Request) {
	t.Helper()
	r = httptest.NewRequest(http.MethodGet, "/", nil)
	before, rest, more := strings.Cut(text, " ~ ")
	for line := ""; more; {
		line, rest, more = strings.Cut(rest, " ~ ")
		name, value, found := strings.Cut(line+" ", ": ")
		value = strings.TrimSuffix(value, " ")
		if unquoted, err := strconv.Unquote(value); err == nil {
			value = unquoted
		}
		if !found {
			t.Fatalf("the line %q has no colon", line)
		}
		r.Header[name] = append(r.Header[name], value)
	}
	return before, r
}

// Response is a complete response to a request.
type Response struct {
	Status int
	Header http.Header
	Body   string
}

// Ask sends a request on its own connection, and returns the response.
func Ask(t testing.TB, request *http.Request) Response {
	t.Helper()
	client, closeIdle := NewClient(1)
	defer closeIdle()
	response, err := AskBy(client, request)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// AskBy sends a request with a client, and returns the response.
func AskBy(client *http.Client, request *http.Request) (Response, error) {
	response, err := client.Do(request)
	if err != nil {
		return Response{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		err = fmt.Errorf("%s %s, status %d, after %d bytes %.300q: %w", request.Method, request.URL,
			response.StatusCode, len(body), body, err)
	}
	return Response{response.StatusCode, response.Header, string(body)}, err
}
