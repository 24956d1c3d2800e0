package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// keyHeader is the request header with the key to charge.
const keyHeader = "X-Key"

// load describes the requests to send.
type load struct {
	draw        draw
	keyCount    int
	connections int
	rate        int // requests a second, independent of responses; 0: the next request follows a response
	// prompts makes the requests prompts of a language model. Then the responses are answer.
	prompts bool
}

const (
	// prompt is the body of a prompt.
	prompt = `{"model":"m","max_tokens":20,"messages":[{"role":"user","content":"How are you?"}]}`
	// answer is the body of the response to a prompt.
	answer = `{"choices":[{"index":0,"message":{"role":"assistant","content":"Fine."}}],` +
		`"usage":{"prompt_tokens":20,"completion_tokens":5,"total_tokens":25}}`
)

// draw returns the number of the key of the next request, usually from 0 to n-1. n is the load's keyCount.
type draw func(c *connection, n int) int

func uniform(_ *connection, n int) int { return rand.IntN(n) }

// zipf draws approximately by Zipf's law with exponent 1: the key of rank k has the weight ln((k+1)/k), which
// is near 1/k. zipf never draws the last key, n-1, if n is above 1.
func zipf(_ *connection, n int) int { return int(math.Pow(float64(n), rand.Float64())) - 1 }

// tenthNew draws a new key for every tenth request on average, and draws like uniform otherwise.
func tenthNew(c *connection, n int) int {
	if rand.Float64() < 0.9 {
		return rand.IntN(n)
	}
	return n + int(c.client.drawn.Add(1))
}

// inTurn draws the keys in order.
func inTurn(c *connection, n int) int { return int(c.client.drawn.Add(1)-1) % n }

// keyName returns the text of key n, which looks like the address of a client.
func keyName(n int) string { return fmt.Sprintf("10.%d.%d.%d", n>>16, n>>8&255, n&255) }

// client sends a load to a proxy over persistent connections.
type client struct {
	address     string
	load        load
	head        string       // start of a request, up to the key
	tail        string       // the rest of it
	drawn       atomic.Int64 // number of draws by inTurn, or of new keys by tenthNew
	connections []*connection
}

// connection is a persistent connection. One goroutine at a time uses it.
type connection struct {
	client *client
	net    net.Conn // nil before the first request, and after a failure
	reader *bufio.Reader
	buffer []byte
}

// result sums up the responses to a load.
type result struct {
	requests  int         // number of requests with a response
	status    map[int]int // number of responses by status
	failed    int         // number of requests without a response
	seconds   float64     // time until the last response
	latencies []float64   // with a rate: milliseconds from the due time to the response
	err       error       // error of a request without a response
}

func newClient(address string, l load) *client {
	c := &client{address: address, load: l,
		head: "GET / HTTP/1.1\r\nHost: " + address + "\r\n" + keyHeader + ": ", tail: "\r\n\r\n"}
	if l.prompts {
		c.head = "POST /v1/chat/completions" + strings.TrimPrefix(c.head, "GET /")
		c.tail = fmt.Sprintf("\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			len(prompt), prompt)
	}
	for range l.connections {
		c.connections = append(c.connections, &connection{client: c})
	}
	return c
}

// run sends requests for the duration d, and waits for all responses. Without a rate, each connection sends
// its next request after the last response. With a rate, the latency of a request counts from its due time,
// even if no connection was free then. If the latency counted from the sending, a late response would delay
// further requests without a trace in their latencies (coordinated omission).
func (c *client) run(d time.Duration) *result {
	return c.send(func(i int, start time.Time) (due time.Time, more bool) {
		if c.load.rate == 0 {
			return due, time.Since(start) < d
		}
		since := time.Duration(i) * time.Second / time.Duration(c.load.rate)
		return start.Add(since), since < d
	})
}

// sendN sends n requests.
func (c *client) sendN(n int) *result {
	return c.send(func(i int, _ time.Time) (due time.Time, more bool) { return due, i < n })
}

// send sends requests, each at its due time, until next reports that there are no more.
func (c *client) send(next func(i int, start time.Time) (due time.Time, more bool)) *result {
	total := newResult()
	var mu sync.Mutex // guards total
	var group sync.WaitGroup
	var issued atomic.Int64
	start := time.Now()
	for _, conn := range c.connections {
		group.Go(func() {
			own := newResult() // of this connection
			for {
				due, more := next(int(issued.Add(1)-1), start)
				if !more {
					break
				}
				time.Sleep(time.Until(due)) // returns immediately for a zero due
				if status, err := conn.send(keyName(c.load.draw(conn, c.load.keyCount))); err != nil {
					own.failed, own.err = own.failed+1, err
				} else {
					own.requests++
					own.status[status]++
				}
				if !due.IsZero() {
					own.latencies = append(own.latencies, time.Since(due).Seconds()*1000)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			total.add(own)
		})
	}
	group.Wait()
	total.seconds = time.Since(start).Seconds()
	return total
}

// send sends one request and reads its response.
func (c *connection) send(key string) (status int, err error) {
	if c.net == nil {
		if c.net, err = net.DialTimeout("tcp", c.client.address, 10*time.Second); err != nil {
			return 0, err
		}
		c.reader = bufio.NewReader(c.net)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.net.Close())
			c.net = nil
		}
	}()
	c.buffer = append(append(append(c.buffer[:0], c.client.head...), key...), c.client.tail...)
	if err := c.net.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return 0, err
	}
	if _, err := c.net.Write(c.buffer); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return 0, err
	}
	body, err := io.ReadAll(response.Body)
	want := "ok"
	if c.client.load.prompts {
		want = answer
	}
	if err == nil && response.StatusCode == http.StatusOK && string(body) != want {
		err = fmt.Errorf("the response is %q instead of %q", body, want) // not from the site with the limit
	}
	return response.StatusCode, errors.Join(err, response.Body.Close())
}

func (c *client) close() {
	for _, conn := range c.connections {
		if conn.net != nil {
			_ = conn.net.Close() // no request is in flight
			conn.net = nil
		}
	}
}

func newResult() *result { return &result{status: map[int]int{}} }

func (r *result) add(other *result) {
	r.requests, r.failed, r.seconds = r.requests+other.requests, r.failed+other.failed,
		r.seconds+other.seconds
	r.err = cmp.Or(r.err, other.err)
	for status, n := range other.status {
		r.status[status] += n
	}
	r.latencies = append(r.latencies, other.latencies...)
}

// countOtherThan returns the number of requests without a response, or with a status other than these.
func (r *result) countOtherThan(statuses ...int) int {
	n := r.requests + r.failed
	for _, status := range statuses {
		n -= r.status[status]
	}
	return n
}

// percentile returns the p-th percentile of the latencies, in milliseconds.
func (r *result) percentile(p int) float64 {
	if len(r.latencies) == 0 {
		return math.NaN()
	}
	slices.Sort(r.latencies)
	return r.latencies[(len(r.latencies)-1)*p/100]
}
