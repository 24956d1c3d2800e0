package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// blockedSignals are the signals that a process blocks at present, as bits; 0
// if that is not known.
func blockedSignals(pid int) uint64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), "\nSigBlk:")
	line, _, _ := strings.Cut(rest, "\n")
	blocked, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		return 0
	}
	return blocked
}
