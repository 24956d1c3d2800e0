package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

// run sends the load from one thread, which sleeps until the next request is
// due or an answer comes, to a few microseconds. Go's own timers wake an idle
// program to the millisecond, which is as much as is to be measured.
func (s *steady) run() (*steadyResult, error) {
	total, err := s.total()
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	// The kernel may otherwise wake a thread up to 50 µs late.
	const prSetTimerSlack = 29
	if _, _, failure := syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, 1, 0); failure != 0 {
		return nil, fmt.Errorf("prctl: %w", failure)
	}
	run := &steadyRun{steady: s, total: total, random: rand.New(rand.NewPCG(s.seed, 1)), head: s.head()}
	defer run.close()
	if err := run.connect(); err != nil {
		return nil, err
	}
	if err := run.send(); err != nil {
		return nil, err
	}
	run.result.conclude(run.latencies)
	return &run.result, nil
}

// steadyRun is a steady load under way.
type steadyRun struct {
	*steady
	total  int
	random *rand.Rand
	head   string // of a request, up to the key
	text   []byte // of the latest request

	epoll     int
	byFD      map[int32]*steadyConn
	free      []*steadyConn // first in, first out, so that all take turns
	underWay  int
	latencies []uint32
	result    steadyResult
}

// steadyConn is a connection.
type steadyConn struct {
	fd       int
	due      time.Duration // of the request under way
	measured bool
	answer   answer
}

func (r *steadyRun) connect() error {
	host, port, err := net.SplitHostPort(r.address)
	if err != nil {
		return err
	}
	ip := net.ParseIP(host).To4()
	number, err := strconv.Atoi(port)
	if err != nil || ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("%s: must be a loopback address of IPv4 with a port", r.address)
	}
	to := &syscall.SockaddrInet4{Port: number, Addr: [4]byte(ip)}
	r.byFD = map[int32]*steadyConn{}
	if r.epoll, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	for range r.connections {
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("socket: %w", err)
		}
		c := &steadyConn{fd: fd}
		r.byFD[int32(fd)] = c
		r.free = append(r.free, c)
		if err := syscall.Connect(fd, to); err != nil {
			return fmt.Errorf("connecting to %s: %w", r.address, err)
		}
		err = errors.Join(syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1), syscall.SetNonblock(fd, true),
			syscall.EpollCtl(r.epoll, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(fd)}))
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *steadyRun) close() {
	for _, c := range r.byFD {
		_ = syscall.Close(c.fd)
	}
	if r.epoll > 0 {
		_ = syscall.Close(r.epoll)
	}
}

// stuck is how long the load waits for an answer before it gives up.
const stuck = 10 * time.Second

func (r *steadyRun) send() error {
	r.latencies = make([]uint32, 0, r.total)
	began := time.Now()
	warm := time.Duration(r.warm * float64(time.Second))
	var lastAnswer time.Duration
	for next := 0; next < r.total || r.underWay > 0; {
		now := time.Since(began)
		for next < r.total && len(r.free) > 0 && r.due(next) <= now {
			c := r.free[0]
			r.free = r.free[1:]
			// Without a rate a request is due when it can be sent.
			if c.due = r.due(next); r.rate == 0 {
				c.due = now
			}
			c.measured = c.due >= warm
			if err := r.request(c, next); err != nil {
				return err
			}
			next++
		}
		wait := time.Second
		if next < r.total && len(r.free) > 0 {
			wait = r.due(next) - time.Since(began)
		}
		answers, err := r.receive(began, wait)
		if err != nil {
			return err
		}
		if now = time.Since(began); answers > 0 || r.underWay == 0 {
			lastAnswer = now
		}
		if now-lastAnswer > stuck {
			return fmt.Errorf("no answer to %d requests for %v", r.underWay, stuck)
		}
	}
	r.result.Seconds = time.Since(began).Seconds()
	return nil
}

// request sends request i.
func (r *steadyRun) request(c *steadyConn, i int) error {
	key := i % r.keys
	if !r.inTurn {
		key = r.random.IntN(r.keys)
	}
	r.text = append(appendKey(append(r.text[:0], r.head...), r.first+key), "\r\n\r\n"...)
	if n, err := syscall.Write(c.fd, r.text); err != nil || n < len(r.text) {
		return errors.Join(fmt.Errorf("sent %d of %d bytes", n, len(r.text)), err)
	}
	r.underWay++
	r.result.Sent++
	return nil
}

// receive waits, but no longer than told, and takes in the answers that are
// there.
func (r *steadyRun) receive(began time.Time, wait time.Duration) (answers int, err error) {
	if wait > 0 {
		pause(r.epoll, wait)
	}
	var events [wrkConnections]syscall.EpollEvent
	n, err := syscall.EpollWait(r.epoll, events[:], 0)
	if err != nil && !errors.Is(err, syscall.EINTR) {
		return 0, fmt.Errorf("epoll: %w", err)
	}
	var buffer [4096]byte
	for i := 0; i < n; i++ {
		c := r.byFD[events[i].Fd]
		size, err := syscall.Read(c.fd, buffer[:])
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("receiving: %w", err)
		}
		if size == 0 {
			return 0, errors.New("the server closed a connection")
		}
		status, err := c.answer.add(buffer[:size])
		if err != nil {
			return 0, err
		}
		if status == 0 {
			continue
		}
		answers++
		r.underWay--
		r.free = append(r.free, c)
		if status != 200 {
			r.result.Other++
		}
		if c.measured {
			r.latencies = append(r.latencies, uint32((time.Since(began)-c.due)/time.Microsecond))
		}
	}
	return answers, nil
}

// pollFD is the kernel's struct pollfd.
type pollFD struct {
	fd              int32
	events, revents int16
}

const pollIn = 1

// pause sleeps until something can be read, or the time is over, or a signal
// comes.
func pause(fd int, wait time.Duration) {
	p := pollFD{fd: int32(fd), events: pollIn}
	t := syscall.NsecToTimespec(int64(wait))
	// Whatever the outcome, the caller looks for himself.
	_, _, _ = syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&t)), 0, 0, 0)
}
