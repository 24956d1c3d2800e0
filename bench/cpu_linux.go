package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// cpuTime returns the processor time of a process and its children in microseconds, including threads and
// children that have ended. The main thread must have started the children, because Linux lists the children
// of each thread separately. The result is exact for running processes. Of children that have ended, Linux
// reports multiples of 10 ms.
func cpuTime(pid int) float64 {
	parent := must(procfs.NewProc(pid))
	for {
		before := must(parent.Stat())
		total := must(clockOf(pid))
		for _, child := range strings.Fields(
			string(must(os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))))) {
			// An error means that the child has ended meanwhile.
			if cpu, err := clockOf(must(strconv.Atoi(child))); err == nil {
				total += cpu
			}
		}
		// If a child ended during the loop, read all again: the sum may have counted the child twice or not
		// at all.
		after := must(parent.Stat())
		if ended := after.CUTime + after.CSTime; ended == before.CUTime+before.CSTime {
			return total + 1e4*float64(ended)
		}
	}
}

// clockOf returns the processor time of a process without its children, in microseconds.
func clockOf(pid int) (float64, error) {
	const allThreads = 2 // CPUCLOCK_SCHED of Linux
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|allThreads), &t); err != nil {
		return 0, fmt.Errorf("reading the clock of process %d: %w", pid, err)
	}
	return float64(t.Nano()) / 1000, nil
}
