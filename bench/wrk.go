package main

import (
	_ "embed" // keys.lua
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

const wrkThreads = 2

// keyHeader carries the key that a request counts against.
const keyHeader = "X-Key"

// load says which keys the requests of a load have, and how many connections there are.
type load struct {
	distribution string // a name in keys.lua
	keys         int
	connections  int
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

	cpu float64 // of wrk itself
}

// rate is the requests a second.
func (r wrkResult) rate() float64 { return float64(r.Requests) / r.Microseconds * 1e6 }

// runWrk loads a proxy for so many seconds. seed seeds the choice of keys.
func (b *bench) runWrk(p *proxy, l load, seconds, seed int) wrkResult {
	if b.wrk == "" {
		b.wrk, b.script = must(harness.Installed(b.ctx, "wrk")), b.file("lua", keysScript)
	}
	cmd := exec.CommandContext(b.ctx, b.wrk, "-t", strconv.Itoa(wrkThreads), "-c", strconv.Itoa(l.connections),
		"-d", strconv.Itoa(seconds)+"s", "-s", b.script, "http://"+p.address+"/", "--",
		keyHeader, l.distribution, strconv.Itoa(l.keys), strconv.Itoa(seed), strconv.Itoa(wrkThreads))
	out, err := cmd.CombinedOutput()
	if err != nil {
		check(fmt.Errorf("wrk: %w: %s", err, out))
	}
	r := must(parseWrk(string(out)))
	r.cpu = float64((cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Microseconds())
	return r
}

// sendInTurn sends a request for each of the keys from first to last, or for almost each of
// them: the threads of wrk are not equally fast.
func (b *bench) sendInTurn(p *proxy, first, last, connections int) (wrong int) {
	for first < last {
		r := b.runWrk(p, load{"turn", last, connections}, 1, first)
		first += int(r.Requests)
		wrong += int(r.Refused + r.Failed)
	}
	return wrong
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
