package batch

import "time"

// Enter puts a call into the queue and waits until the call is finished. It is Send and
// Wait in one function, since each request calls it.
func Enter(q *Queue, c *Call) {
	c.Arrived = time.Now()
	q.mu.Lock()
	q.pending = append(q.pending, c)
	start := !q.collecting
	q.collecting = true
	q.mu.Unlock()
	if start {
		go startWorker(q)
	}
	<-c.done
}

// Send puts a call into the queue. Wait must follow.
func Send(q *Queue, c *Call) {
	c.Arrived = time.Now()
	q.mu.Lock()
	q.pending = append(q.pending, c)
	start := !q.collecting
	q.collecting = true
	q.mu.Unlock()
	if start {
		go startWorker(q)
	}
}

// Wait waits until a call that was sent is finished.
func Wait(c *Call) { <-c.done }
