//go:build !linux

package cluster

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// processes returns all processes of the machine, keyed by pid.
func processes() (map[int]process, error) {
	out, err := exec.Command("ps", "-axo", "pid=,ppid=,stat=").Output()
	if err != nil {
		return nil, fmt.Errorf("cluster: ps: %w", err)
	}
	all := make(map[int]process)
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		pid, err := strconv.Atoi(fields[0])
		parent, parentErr := strconv.Atoi(fields[1])
		if err != nil || parentErr != nil {
			continue
		}
		all[pid] = process{parent: parent, state: fields[2][0]}
	}
	return all, nil
}

// commandLine returns the command that started a process, or "" if it cannot be read.
func commandLine(pid int) string {
	out, err := exec.Command("ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
