package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// processes returns all processes of the machine, keyed by pid. It reads /proc, because the smallest images
// have no ps.
func processes() (map[int]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	all := make(map[int]process)
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "stat"))
		if err != nil {
			continue // the process has ended meanwhile
		}
		// "123 (name, which may hold anything) S 1 …"
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 2 {
			continue
		}
		parent, err := strconv.Atoi(string(fields[1]))
		if err != nil {
			continue
		}
		all[pid] = process{parent: parent, state: fields[0][0]}
	}
	return all, nil
}

// commandLine returns the command that started a process, or "" if it cannot be read.
func commandLine(pid int) string {
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return ""
	}
	return string(bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
}
