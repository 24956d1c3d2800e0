//go:build !linux

package main

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// cpuTime is the processor time that a process and its children have taken, in microseconds, as
// ps tells it in multiples of 10 ms. It lacks children that have ended.
func cpuTime(pid int) float64 {
	total, id := 0.0, strconv.Itoa(pid)
	for line := range strings.Lines(string(must(exec.Command("ps", "-axo", "pid=,ppid=,time=").Output()))) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			check(fmt.Errorf("ps wrote %q", line))
		}
		if fields[0] != id && fields[1] != id {
			continue
		}
		seconds := 0.0
		for part := range strings.SplitSeq(fields[2], ":") { // hours, minutes, seconds
			seconds = 60*seconds + must(strconv.ParseFloat(part, 64))
		}
		total += 1e6 * seconds
	}
	return total
}
