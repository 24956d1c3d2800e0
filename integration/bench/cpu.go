package main

import (
	"time"

	"github.com/prometheus/procfs"
)

// cpuTime is the user and system time of a process and its children, including
// those that have ended. Its resolution is 10 ms.
func cpuTime(pid int) time.Duration {
	parent := must(procfs.NewProc(pid))
	for {
		before := must(parent.Stat())
		children := 0.0
		for _, p := range must(procfs.AllProcs()) {
			// An error means that the process has ended meanwhile.
			if s, err := p.Stat(); err == nil && s.PPID == pid {
				children += s.CPUTime()
			}
		}
		after := must(parent.Stat())
		// A child that has ended meanwhile may be counted twice, or not at all.
		if before.CUTime == after.CUTime && before.CSTime == after.CSTime {
			// Of children that have ended procfs gives ticks, which are 10 ms on every Linux.
			ended := time.Duration(after.CUTime+after.CSTime) * 10 * time.Millisecond
			return ended + time.Duration((after.CPUTime()+children)*float64(time.Second))
		}
	}
}

// residentBytes is the physical memory of a process.
func residentBytes(pid int) int {
	p := must(procfs.NewProc(pid))
	s := must(p.Stat())
	return s.ResidentMemory()
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
