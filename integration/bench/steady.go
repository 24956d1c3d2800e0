package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// steadyChild is the argument that asks for steadyMain.
const steadyChild = "child-steady"

// steady is a load that does not wait for the answers to the requests before:
// each request is due at a time of its own, and its latency counts from then
// on, whether or not a connection was free. wrk, which sends as fast as answers
// come, would send less where an answer is late, and so not see how many
// requests that would have held up.
type steady struct {
	address     string
	rate        float64 // requests a second; 0 is as fast as answers come
	connections int
	first, keys int  // the keys' numbers are from first to first+keys-1
	inTurn      bool // the keys come in turn, not at random
	warm        float64
	seconds     float64 // measured, after warm; 0 if requests bounds the load
	requests    int     // 0 if the time bounds the load
	seed        uint64
}

// steadyResult is what came of it; times are in microseconds.
type steadyResult struct {
	Sent          int64
	Other         int64 // answers with another status than 200
	Seconds       float64
	P50, P99, Max float64
}

// runSteady runs the load in a process of its own: there nothing else, such as
// a collection of garbage, comes between it and the clock.
func (b *bench) runSteady(ctx context.Context, s steady) (steadyResult, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.self, steadyChild, "-address", s.address,
		"-rate", strconv.FormatFloat(s.rate, 'f', 3, 64), "-connections", strconv.Itoa(s.connections),
		"-first", strconv.Itoa(s.first), "-keys", strconv.Itoa(s.keys), "-in-turn="+strconv.FormatBool(s.inTurn),
		"-warm", strconv.FormatFloat(s.warm, 'f', 3, 64), "-seconds", strconv.FormatFloat(s.seconds, 'f', 3, 64),
		"-requests", strconv.Itoa(s.requests), "-seed", strconv.FormatUint(s.seed, 10))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.Output()
	var r steadyResult
	if err != nil {
		return r, explainExit(err)
	}
	return r, json.Unmarshal(out, &r)
}

// steadyMain is the process of a steady load.
func steadyMain(args []string) error {
	var s steady
	flags := flag.NewFlagSet(steadyChild, flag.ContinueOnError)
	flags.StringVar(&s.address, "address", "", "")
	flags.Float64Var(&s.rate, "rate", 0, "")
	flags.IntVar(&s.connections, "connections", 1, "")
	flags.IntVar(&s.first, "first", 0, "")
	flags.IntVar(&s.keys, "keys", 1, "")
	flags.BoolVar(&s.inTurn, "in-turn", false, "")
	flags.Float64Var(&s.warm, "warm", 0, "")
	flags.Float64Var(&s.seconds, "seconds", 0, "")
	flags.IntVar(&s.requests, "requests", 0, "")
	flags.Uint64Var(&s.seed, "seed", 0, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	result, err := s.run()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// total is how many requests the load is made of; 0 if only time bounds it.
func (s *steady) total() (int, error) {
	n := s.requests
	if n == 0 && s.rate > 0 {
		n = int(s.rate * (s.warm + s.seconds))
	}
	if n < 1 || s.connections < 1 || s.keys < 1 {
		return 0, errors.New("must have requests, or a rate and seconds; connections; keys")
	}
	return n, nil
}

// due is when request i is to be sent, from the load's start.
func (s *steady) due(i int) time.Duration {
	if s.rate == 0 {
		return 0
	}
	return time.Duration(float64(i) / s.rate * float64(time.Second))
}

// conclude works out the result from the latencies in microseconds.
func (r *steadyResult) conclude(latencies []uint32) {
	slices.Sort(latencies)
	r.P50, r.P99, r.Max = percentile(latencies, 50), percentile(latencies, 99), percentile(latencies, 100)
}

// percentile is the smallest value that p percent of the sorted ones do not exceed.
func percentile(sorted []uint32, p float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	at := int(math.Ceil(float64(len(sorted))*p/100)) - 1
	return float64(sorted[max(0, at)])
}

// head is a request up to the key, which ends it.
func (s *steady) head() string {
	return "GET / HTTP/1.1\r\nHost: " + s.address + "\r\n" + keyHeader + ": "
}
