package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// pacedRun is a pacedLoad under way. One thread sends all requests and receives all
// answers. It sleeps in the kernel until the next request is due or an answer
// arrives. Go's own timers may wake an idle program a millisecond late, which is as
// much as there is to measure; and a client of net/http would take more of the
// machine than the proxy.
type pacedRun struct {
	pacedLoad
	began     time.Time
	epoll     int
	all       map[int32]*pacedConn // by file descriptor
	free      []*pacedConn         // without a request; first in, first out
	latencies []time.Duration
	refused   int
}

// pacedConn is a connection. It has one request in flight, or is in pacedRun.free.
type pacedConn struct {
	fd     int
	due    time.Duration // of the request in flight, from the start of the load
	answer []byte        // as far as it has arrived
}

// run sends the load and waits for all answers.
func (l pacedLoad) run(ctx context.Context) (result pacedResult, err error) {
	defer catch(&err)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if l.rate > 0 {
		defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection would make requests late
	}
	check(unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)) // or else the kernel wakes a thread up to 50 µs late
	r := &pacedRun{pacedLoad: l, all: map[int32]*pacedConn{}, epoll: must(unix.EpollCreate1(unix.EPOLL_CLOEXEC))}
	defer unix.Close(r.epoll)
	for range cmp.Or(l.connections, connections) {
		conn := must(net.Dial("tcp", r.address)).(*net.TCPConn)
		file := must(conn.File()) // a duplicate, which Go's runtime does not poll
		defer file.Close()
		check(conn.Close())
		c := &pacedConn{fd: int(file.Fd())}
		r.all[int32(c.fd)] = c
		r.free = append(r.free, c)
		check(unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, c.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(c.fd)}))
	}
	r.send(ctx)
	slices.Sort(r.latencies)
	if n := len(r.latencies); n > 0 {
		result.p99 = r.latencies[(99*n+99)/100-1]
	}
	result.refused = r.refused
	return result, nil
}

// send sends each request when it is due and a connection is free, and receives the
// answers.
func (r *pacedRun) send(ctx context.Context) {
	const patience = 10 * time.Second
	r.latencies = make([]time.Duration, 0, r.requests)
	r.began = time.Now()
	for sent := 0; sent < r.requests || len(r.free) < len(r.all); {
		check(ctx.Err())
		wait := patience
		for sent < r.requests && len(r.free) > 0 {
			due := time.Since(r.began)
			if r.rate > 0 {
				due = time.Duration(float64(sent) / r.rate * float64(time.Second))
			}
			if wait = due - time.Since(r.began); wait > 0 {
				break
			}
			r.request(sent, due)
			sent++
			wait = patience
		}
		timeout := unix.NsecToTimespec(wait.Nanoseconds())
		n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(r.epoll), Events: unix.POLLIN}}, &timeout, nil)
		switch {
		case n > 0:
			r.receive()
		case wait == patience && !errors.Is(err, unix.EINTR):
			check(fmt.Errorf("no answer from %s for %v", r.address, patience))
		}
	}
}

// request sends request i on a free connection.
func (r *pacedRun) request(i int, due time.Duration) {
	c := r.free[0]
	r.free = r.free[1:]
	c.due = due
	key := i % r.keys
	if r.atRandom {
		key = rand.IntN(r.keys)
	}
	name := keyName
	if r.name != nil {
		name = r.name
	}
	must(unix.Write(c.fd, []byte("GET / HTTP/1.1\r\nHost: "+r.address+"\r\n"+keyHeader+": "+name(r.firstKey+key)+"\r\n\r\n")))
}

// receive takes in what has arrived.
func (r *pacedRun) receive() {
	var events [connections]unix.EpollEvent
	var buffer [4096]byte
	for _, event := range events[:must(unix.EpollWait(r.epoll, events[:], 0))] {
		c := r.all[event.Fd]
		size := must(unix.Read(c.fd, buffer[:]))
		if size == 0 {
			check(errors.New("the proxy closed a connection"))
		}
		c.answer = append(c.answer, buffer[:size]...)
		status := must(parseAnswer(c.answer))
		if status == 0 {
			continue
		}
		if status != cmp.Or(r.status, 200) {
			r.refused++
		}
		if c.due >= r.warmUp {
			r.latencies = append(r.latencies, time.Since(r.began)-c.due)
		}
		c.answer = c.answer[:0]
		r.free = append(r.free, c)
	}
}

// parseAnswer returns the status of an HTTP/1.1 answer with a Content-Length, or 0
// if a part of the answer is still missing.
func parseAnswer(text []byte) (status int, err error) {
	head, body, whole := bytes.Cut(text, []byte("\r\n\r\n"))
	if !whole {
		return 0, nil
	}
	_, rest, _ := bytes.Cut(head, []byte("\r\nContent-Length: "))
	value, _, _ := bytes.Cut(rest, []byte("\r\n"))
	length, err := strconv.Atoi(string(value))
	if err != nil || len(head) < len("HTTP/1.1 200") || len(body) > length {
		return 0, fmt.Errorf("not one HTTP/1.1 answer with a Content-Length: %q", text)
	}
	if len(body) < length {
		return 0, nil
	}
	return strconv.Atoi(string(head[len("HTTP/1.1 "):len("HTTP/1.1 200")]))
}
