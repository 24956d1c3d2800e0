package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// What /proc tells of processes, on Linux.

// tick is the unit of times in /proc/PID/stat, on every Linux.
const tick = time.Second / 100

// procStat is the part of /proc/PID/stat that is of use here.
type procStat struct {
	parent int
	own    time.Duration // CPU time of the process
	reaped time.Duration // of its children that have ended
}

func readStat(pid int) (procStat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	return parseStat(string(text))
}

// parseStat reads the fields after the program's name, which is in brackets
// and may hold any character.
func parseStat(text string) (procStat, error) {
	end := strings.LastIndexByte(text, ')')
	fields := strings.Fields(text[end+1:])
	if end < 0 || len(fields) < 15 {
		return procStat{}, fmt.Errorf("/proc/PID/stat: %q: must have 17 fields or more", text)
	}
	var n [15]int64
	for _, i := range []int{1, 11, 12, 13, 14} {
		var err error
		if n[i], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
			return procStat{}, fmt.Errorf("/proc/PID/stat: %w", err)
		}
	}
	return procStat{int(n[1]), time.Duration(n[11]+n[12]) * tick, time.Duration(n[13]+n[14]) * tick}, nil
}

// cpuOfFamily is the CPU time of a process and its children, those included
// that have ended.
func cpuOfFamily(pid int) (time.Duration, error) {
	parent, err := readStat(pid)
	if err != nil {
		return 0, err
	}
	for {
		children, err := cpuOfChildren(pid)
		if err != nil {
			return 0, err
		}
		// A child that went from one account to the other meanwhile may be in
		// both, or in neither.
		before := parent.reaped
		if parent, err = readStat(pid); err != nil {
			return 0, err
		}
		if parent.reaped == before {
			return parent.own + parent.reaped + children, nil
		}
	}
}

// cpuOfChildren is the CPU time of the children that have not been waited for.
func cpuOfChildren(pid int) (time.Duration, error) {
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	total := time.Duration(0)
	for _, folder := range folders {
		child, err := strconv.Atoi(filepath.Base(folder))
		if err != nil {
			continue
		}
		// One that is gone since is somebody else's, or counted as reaped.
		if s, err := readStat(child); err == nil && s.parent == pid {
			total += s.own
		}
	}
	return total, nil
}

// residentBytes is how much memory a process holds.
func residentBytes(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	kilobytes, err := strconv.ParseInt(strings.TrimSuffix(field(string(text), "VmRSS:"), " kB"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/%d/status: VmRSS: %w", pid, err)
	}
	return kilobytes << 10, nil
}

// field is what follows name in the first line that begins with it.
func field(text, name string) string {
	for _, line := range strings.Split(text, "\n") {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
