package main

import (
	"context"
	_ "embed" // keys.lua
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

const (
	connections = 64 // of every load on a proxy
	wrkThreads  = 2
)

// keyHeader carries the key that a request counts against.
const keyHeader = "X-Key"

// keys says which keys the requests of a load have.
type keys struct {
	distribution string // a name in keys.lua
	count        int
}

// keyName is the name that keys.lua gives to key n.
func keyName(n int) string { return fmt.Sprintf("10.%d.%d.%d", n>>16, n>>8&255, n&255) }

//go:embed keys.lua
var keysScript string

// wrkResult is what keys.lua prints at wrk's end. Times are in microseconds.
type wrkResult struct {
	Requests     int64
	Microseconds float64
	P50, P99     float64
	Refused      int64 // answered with a status of 400 or more
	Failed       int64 // not answered

	cpu time.Duration // of wrk itself
}

// rate is the requests a second.
func (r wrkResult) rate() float64 { return float64(r.Requests) / r.Microseconds * 1e6 }

// runWrk loads a proxy for so many seconds. seed seeds the choice of keys.
func (b *bench) runWrk(p *proxy, k keys, seconds, seed int) wrkResult {
	if b.wrk == "" {
		b.wrk, b.script = b.tool("wrk"), b.file("lua", keysScript)
	}
	ctx, cancel := context.WithTimeout(b.ctx, time.Duration(seconds)*time.Second+30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.wrk, "-t", strconv.Itoa(wrkThreads), "-c", strconv.Itoa(connections),
		"-d", strconv.Itoa(seconds)+"s", "-s", b.script, "http://"+p.address+"/", "--",
		keyHeader, k.distribution, strconv.Itoa(k.count), strconv.Itoa(seed))
	r := must(parseWrk(string(must(output(cmd)))))
	r.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return r
}

// parseWrk finds the line of keys.lua in the output of wrk.
func parseWrk(out string) (r wrkResult, err error) {
	_, line, _ := strings.Cut(out, "RESULT ")
	line, _, _ = strings.Cut(line, "\n")
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		return r, fmt.Errorf("wrk wrote no result: %w: %s", err, out)
	}
	if r.Requests < 1 || r.Microseconds <= 0 {
		return r, fmt.Errorf("wrk got no answer: %s", line)
	}
	return r, nil
}
