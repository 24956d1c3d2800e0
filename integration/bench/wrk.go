package main

import (
	"context"
	_ "embed" // keys.lua
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The load: as the targets have it.
const (
	wrkConnections = 64
	wrkThreads     = 2
)

// keyHeader carries the key that a request counts against.
const keyHeader = "X-Key"

// keys says which keys the requests of a load have.
type keys struct {
	distribution string // as keys.lua knows it
	count        int
}

var (
	oneKey      = keys{"uniform", 1}
	thousand    = keys{"uniform", 1000}
	million     = keys{"uniform", 1000000}
	millionZipf = keys{"zipf", 1000000}
)

// appendKey appends the name that keys.lua gives to key n.
func appendKey(text []byte, n int) []byte {
	text = append(text, "10."...)
	text = append(strconv.AppendInt(text, int64(n>>16), 10), '.')
	text = append(strconv.AppendInt(text, int64(n>>8&255), 10), '.')
	return strconv.AppendInt(text, int64(n&255), 10)
}

//go:embed keys.lua
var keysScript string

// wrkResult is what wrk reports; times are in microseconds.
type wrkResult struct {
	Requests     int64
	Microseconds float64
	P50, P99     float64
	Refused      int64 // answered with a status of 400 or more
	Failed       int64 // not answered

	cpu time.Duration // that wrk itself has used up
}

// rate is the requests a second.
func (r wrkResult) rate() float64 { return float64(r.Requests) / r.Microseconds * 1e6 }

// runWrk loads an address for so many seconds.
func (b *bench) runWrk(ctx context.Context, address string, k keys, seconds, seed int) (wrkResult, error) {
	script := filepath.Join(b.dir, "keys.lua")
	if _, err := os.Stat(script); err != nil {
		if err := os.WriteFile(script, []byte(keysScript), 0o600); err != nil {
			return wrkResult{}, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.wrk, "-t", strconv.Itoa(wrkThreads), "-c", strconv.Itoa(wrkConnections),
		"-d", strconv.Itoa(seconds)+"s", "-s", script, "http://"+address+"/", "--",
		keyHeader, k.distribution, strconv.Itoa(k.count), strconv.Itoa(seed))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.Output()
	if err != nil {
		return wrkResult{}, fmt.Errorf("wrk: %w", explainExit(err))
	}
	r, err := parseWrk(string(out))
	r.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return r, err
}

// parseWrk reads what keys.lua writes at the end.
func parseWrk(out string) (wrkResult, error) {
	_, line, found := strings.Cut(out, "RESULT ")
	var r wrkResult
	if !found {
		return r, fmt.Errorf("wrk wrote no result: %s", strings.TrimSpace(out))
	}
	line, _, _ = strings.Cut(line, "\n")
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		return r, fmt.Errorf("wrk: %w: %s", err, line)
	}
	if r.Requests < 1 || r.Microseconds <= 0 {
		return r, fmt.Errorf("wrk got no answer: %s", line)
	}
	return r, nil
}
