package host

import (
	"sync"
	"sync/atomic"
	"time"
)

// Running holds the requests of a process that are settled after their responses. A proxy that stops settles
// them before it closes its databases. The zero value is ready for use.
type Running struct {
	stopping int32 // 1 after Stop; atomic

	mu       sync.Mutex // guards the fields below
	last     int64
	requests map[int64]Unsettled
}

// Unsettled is a request in Running.
type Unsettled interface {
	// Stop settles the request by what its response has had so far, after which the response goes no
	// further. It reports false while a part of the response is being sent.
	Stop() bool
	// Interrupt ends the sending of a part.
	Interrupt()
	// Lose counts the request as one that is not settled.
	Lose()
}

// Add adds a request, and returns its number for Remove.
func (r *Running) Add(request Unsettled) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.requests == nil {
		r.requests = map[int64]Unsettled{}
	}
	r.last++
	r.requests[r.last] = request
	return r.last
}

// Remove removes requests that are settled.
func (r *Running) Remove(numbers ...int64) {
	r.mu.Lock()
	for _, number := range numbers {
		delete(r.requests, number)
	}
	r.mu.Unlock()
}

// Wait waits until no request runs, for at most a time.
func (r *Running) Wait(most time.Duration) {
	for until := time.Now().Add(most); len(r.all()) > 0 && time.Now().Before(until); {
		time.Sleep(5 * time.Millisecond)
	}
}

// stopTimeout bounds Stop. A client that does not read its response delays it by readTimeout.
const (
	stopTimeout = 5 * time.Second
	readTimeout = 500 * time.Millisecond
)

// Stop stops all requests, and loses those whose parts are still being sent after stopTimeout.
func (r *Running) Stop() {
	atomic.StoreInt32(&r.stopping, 1)
	defer atomic.StoreInt32(&r.stopping, 0)
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		waited := time.Since(began)
		left := 0
		for number, request := range r.all() {
			switch {
			case request.Stop():
				r.Remove(number)
			case waited > stopTimeout:
				request.Lose()
				r.Remove(number)
			default:
				left++
				if waited > readTimeout {
					request.Interrupt()
				}
			}
		}
		if left == 0 {
			return
		}
	}
}

// Stopping reports whether Stop runs.
func (r *Running) Stopping() bool { return atomic.LoadInt32(&r.stopping) != 0 }

// all returns the requests.
func (r *Running) all() map[int64]Unsettled {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[int64]Unsettled{}
	for number, request := range r.requests {
		all[number] = request
	}
	return all
}
