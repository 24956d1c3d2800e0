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
	"sync"
	"sync/atomic"
	"time"
)

// keyHeader is the request header with the key to charge.
const keyHeader = "X-Key"

// load describes the requests to send.
type load struct {
	draw        draw
	keys        int
	connections int
	rate        int // requests a second, whether or not answers arrive; 0 is as many as are answered
}

// draw returns the number of the key of the next request, from 0.
type draw func(c *connection, keys int) int

func uniform(_ *connection, keys int) int { return rand.IntN(keys) }

// zipf draws by Zipf's law with exponent 1: the key of rank k has the weight ln((k+1)/k).
func zipf(_ *connection, keys int) int { return int(math.Pow(float64(keys), rand.Float64())) - 1 }

// used draws nine of ten keys like uniform, and a new key otherwise.
func used(c *connection, keys int) int {
	if rand.Float64() < 0.9 {
		return rand.IntN(keys)
	}
	return keys + int(c.client.fresh.Add(1))
}

// inTurn draws the keys in order.
func inTurn(c *connection, keys int) int { return int(c.client.fresh.Add(1)-1) % keys }

// keyName returns the text of key n, which looks like the address of a client.
func keyName(n int) string { return fmt.Sprintf("10.%d.%d.%d", n>>16, n>>8&255, n&255) }

// client sends a load to a proxy over persistent connections.
type client struct {
	address     string
	load        load
	head        string       // of a request, up to the key
	fresh       atomic.Int64 // new keys that used and inTurn have drawn
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
	requests  int         // answered
	status    map[int]int // of the answers
	failed    int         // not answered
	seconds   float64     // until the last answer
	latencies []float64   // of paced loads: in milliseconds, from when a request was due
	err       error       // of a request that was not answered
}

func newClient(address string, l load) *client {
	c := &client{address: address, load: l,
		head: "GET / HTTP/1.1\r\nHost: " + address + "\r\n" + keyHeader + ": "}
	for range l.connections {
		c.connections = append(c.connections, &connection{client: c})
	}
	return c
}

// run sends requests for the duration d, and waits for all answers. Without a rate, each connection sends its
// next request after the answer to the last one. With a rate, the latency of a request counts from its due
// time, even if no connection was free then. Otherwise the load would slow down while answers are late, and
// so hide the delay of further requests (coordinated omission).
func (c *client) run(d time.Duration) *result {
	return c.send(func(i int, began time.Time) (due time.Time, more bool) {
		if c.load.rate == 0 {
			return due, time.Since(began) < d
		}
		since := time.Duration(i) * time.Second / time.Duration(c.load.rate)
		return began.Add(since), since < d
	})
}

// sendN sends n requests.
func (c *client) sendN(n int) *result {
	return c.send(func(i int, _ time.Time) (due time.Time, more bool) { return due, i < n })
}

// send sends requests, each at its due time, until next reports that there are no more.
func (c *client) send(next func(i int, began time.Time) (due time.Time, more bool)) *result {
	total := newResult()
	var mu sync.Mutex // guards total
	var group sync.WaitGroup
	var issued atomic.Int64
	began := time.Now()
	for _, from := range c.connections {
		group.Go(func() {
			own := newResult()
			for {
				due, more := next(int(issued.Add(1)-1), began)
				if !more {
					break
				}
				time.Sleep(time.Until(due)) // no time for a due that is zero
				if status, err := from.ask(keyName(c.load.draw(from, c.load.keys))); err != nil {
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
	total.seconds = time.Since(began).Seconds()
	return total
}

// ask sends one request and reads its answer.
func (c *connection) ask(key string) (status int, err error) {
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
	c.buffer = append(append(append(c.buffer[:0], c.client.head...), key...), "\r\n\r\n"...)
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
	if err == nil && response.StatusCode == http.StatusOK && string(body) != "ok" {
		err = fmt.Errorf("an answer %q instead of \"ok\"", body) // not from the site with the limit
	}
	return response.StatusCode, errors.Join(err, response.Body.Close())
}

func (c *client) close() {
	for _, from := range c.connections {
		if from.net != nil {
			_ = from.net.Close() // nothing is in flight
			from.net = nil
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

// unlike returns the number of requests without an answer, or with a status other than these.
func (r *result) unlike(statuses ...int) int {
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
