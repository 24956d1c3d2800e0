package main

import "github.com/prometheus/procfs"

// cpuTime is the user and system time of a process and its children, including
// those that have ended, in microseconds. Its resolution is 10 ms.
func cpuTime(pid int) float64 {
	parent := must(must(procfs.NewProc(pid)).Stat())
	// Of children that have ended procfs gives ticks, which are 10 ms on every Linux.
	seconds := parent.CPUTime() + float64(parent.CUTime+parent.CSTime)/100
	for _, p := range must(procfs.AllProcs()) {
		// An error means that the process has ended meanwhile.
		if s, err := p.Stat(); err == nil && s.PPID == pid {
			seconds += s.CPUTime()
		}
	}
	return 1e6 * seconds
}

// residentBytes is the physical memory of a process.
func residentBytes(pid int) float64 {
	p := must(procfs.NewProc(pid))
	s := must(p.Stat())
	return float64(s.ResidentMemory())
}
