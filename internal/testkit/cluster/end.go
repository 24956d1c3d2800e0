package cluster

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

// run is one start of the server.
type run struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed after cmd.Wait
	err    error         // the result of cmd.Wait; set before exited is closed
	paused bool
}

func (r *run) pid() int { return r.cmd.Process.Pid }

// awaitExit waits for the end of the server, and reports whether the server ended within timeout.
func (r *run) awaitExit(timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-r.exited:
		return true
	case <-timer.C:
		return false
	}
}

// running reports whether the server is running. The caller holds the mutex.
func (c *Cluster) running() bool {
	if c.run == nil {
		return false
	}
	select {
	case <-c.run.exited:
		return false
	default:
		return true
	}
}

// stopServer ends the server with a checkpoint. If that takes longer than stopTimeout, stopServer ends the
// server without a checkpoint, and after another stopTimeout with SIGKILL. The caller holds the mutex.
func (c *Cluster) stopServer() error {
	if !c.running() {
		return nil
	}
	if c.run.paused {
		if err := c.thaw(); err != nil {
			return err
		}
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		if err := c.signal(c.run.pid(), sig); err != nil {
			return err
		}
		if c.run.awaitExit(stopTimeout) {
			return c.leash.Hold(0)
		}
	}
	return c.killServer()
}

// killServer ends all processes of the server with SIGKILL. The caller holds
// the mutex.
func (c *Cluster) killServer() error {
	if !c.running() {
		return nil
	}
	// After SIGSTOP, the server starts no further child while killServer lists the children.
	if err := c.freeze(); err != nil {
		return err
	}
	children, err := descendants(c.run.pid())
	if err != nil {
		return err
	}
	for _, pid := range append([]int{c.run.pid()}, children...) {
		if err := c.signal(pid, syscall.SIGKILL); err != nil {
			return err
		}
	}
	if !c.run.awaitExit(stopTimeout) {
		return fmt.Errorf("cluster: pid %d is there %v after SIGKILL", c.run.pid(), stopTimeout)
	}
	if err := awaitGone(stopTimeout, children); err != nil {
		return err
	}
	return c.leash.Hold(0)
}

// freeze sends SIGSTOP to the running server and then to its children. The caller holds the mutex.
func (c *Cluster) freeze() error {
	c.run.paused = true
	if err := c.signal(c.run.pid(), syscall.SIGSTOP); err != nil {
		return err
	}
	if err := awaitStopped(c.run.pid()); err != nil {
		return err
	}
	children, err := descendants(c.run.pid())
	if err != nil {
		return err
	}
	for _, pid := range children {
		if err := c.signal(pid, syscall.SIGSTOP); err != nil {
			return err
		}
	}
	return nil
}

// thaw continues all processes of the running server. The caller holds the mutex.
func (c *Cluster) thaw() error {
	children, err := descendants(c.run.pid())
	if err != nil {
		return err
	}
	for _, pid := range append(children, c.run.pid()) {
		if err := c.signal(pid, syscall.SIGCONT); err != nil {
			return err
		}
	}
	c.run.paused = false
	return nil
}

// signal sends a signal to a process that may have ended by itself.
func (c *Cluster) signal(pid int, s syscall.Signal) error {
	if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("cluster: pid %d: %v: %w", pid, s, err)
	}
	return nil
}

// awaitStopped waits until a process has stopped after SIGSTOP, or has ended.
func awaitStopped(pid int) error {
	return awaitProcesses(stopTimeout, fmt.Sprintf("pid %d to stop", pid), func(procs map[int]process) bool {
		p, ok := procs[pid]
		return !ok || p.state == 'T' || p.state == 'Z'
	})
}

// awaitGone waits until the processes have ended. A zombie counts as ended.
func awaitGone(timeout time.Duration, pids []int) error {
	return awaitProcesses(timeout, fmt.Sprintf("pids %v to end", pids), func(procs map[int]process) bool {
		for _, pid := range pids {
			if p, ok := procs[pid]; ok && p.state != 'Z' {
				return false
			}
		}
		return true
	})
}

// awaitProcesses reads the machine's processes, keyed by pid, until f returns true. what completes the error
// "waited 10s for ".
func awaitProcesses(timeout time.Duration, what string, f func(map[int]process) bool) error {
	for deadline := time.Now().Add(timeout); ; time.Sleep(pollEvery) {
		procs, err := processes()
		if err != nil {
			return err
		}
		if f(procs) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cluster: waited %v for %s", timeout, what)
		}
	}
}

// process is a process of this machine.
type process struct {
	parent int
	state  byte // the state in ps: T stopped, Z zombie
}

// descendants returns the children of a process, their children, and so on.
func descendants(pid int) ([]int, error) {
	procs, err := processes()
	if err != nil {
		return nil, err
	}
	var pids []int
	for parents := []int{pid}; len(parents) > 0; {
		var next []int
		for child, p := range procs {
			for _, parent := range parents {
				if p.parent == parent {
					next = append(next, child)
				}
			}
		}
		pids = append(pids, next...)
		parents = next
	}
	return pids, nil
}
