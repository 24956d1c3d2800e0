package main

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// row is a row of a table: a proxy with a limit, under a load.
type row struct {
	name    string
	bar     string // name in the picture; "": not in the picture
	traefik bool   // whether the proxy is a Traefik, else a Caddy
	// ofBaseVersion selects the proxy of the base version.
	ofBaseVersion bool
	limit         *limitSpec // nil: no limit
	load          load
	filled        bool // whether the tables have a million keys
	onlyWithAll   bool // whether the row needs the flag -all
	base          *row // row to compare with; nil: none
	memory        *row // row of a limiter in the memory of the same proxy; nil: none
	redis         *row // row of a limiter on Redis in the same proxy; nil: none

	control *row     // copy of base with samples of the same rounds; nil before the measurement
	samples []sample // one sample for each round
	wrong   int      // number of requests with a wrong response or none
}

// limitSpec describes a limit of pg_ratelimit or of another limiter.
type limitSpec struct {
	peer      limiter  // "": pg_ratelimit. With a peer, only limit is used.
	algorithm string   // "": sliding_window
	limit     string   // events and window
	lease     string   // maximum share of the quota in a lease; "": no lease
	options   string   // further lines of a Caddyfile, without an effect on Traefik
	zones     []string // further limits of the same request
	// policy replaces the limits of the configuration by the rules of policyRowsOf.
	policy      bool
	forwardAuth bool // whether Traefik asks a Caddy that has the limit, by forwardAuth
}

// events returns the number of hits that the limit admits in its window.
func (l *limitSpec) events() int {
	events, _, _ := strings.Cut(l.limit, " ")
	return must(strconv.Atoi(events))
}

// window returns the length of the limit's window.
func (l *limitSpec) window() string {
	_, window, _ := strings.Cut(l.limit, " ")
	return window
}

// limiter names a peer: a limiter of another project.
type limiter string

const (
	inProcess limiter = "in memory" // mholt/caddy-ratelimit, or Traefik's rateLimit
	onRedis   limiter = "on Redis"  // redis_rate, or Traefik's rateLimit with its option redis
)

// isOwnLimit reports whether the proxy has a limit of pg_ratelimit.
func (r *row) isOwnLimit() bool { return r.limit != nil && r.limit.peer == "" }

// inRedis reports whether the proxy counts in Redis.
func (r *row) inRedis() bool { return r.limit != nil && r.limit.peer == onRedis }

const (
	million = 1000000
	ample   = "100000000 1h" // a quota that no load uses up
	share   = "5%"           // the lease of leased rows
	scarce  = "1 1h"         // a quota that the first request uses up

	// A quota that no load uses up, for limiters that keep the time of each event.
	ampleLog = "1000 1s"
)

// Loads. Most have few keys, each so busy that leases serve it even while other work slows the machine down.
var (
	hundred  = load{draw: uniform, keys: 100, connections: 64}
	wide     = load{draw: uniform, keys: 100, connections: 256}
	paced    = load{draw: uniform, keys: 100, connections: 64, rate: 500}
	hotKey   = load{draw: uniform, keys: 1, connections: 64}
	refusals = load{draw: used, keys: 1000, connections: 64}
	tenZipf  = load{draw: zipf, keys: 10000, connections: 64}
)

// Limits of pg_ratelimit.
var (
	exact      = &limitSpec{limit: ample}
	leased     = &limitSpec{limit: ample, lease: share}
	withPolicy = &limitSpec{policy: true}
)

// Limits of the peers in the memory of Caddy and of Traefik, and on Redis.
var (
	caddyRate   = &limitSpec{peer: inProcess, limit: ampleLog}
	traefikRate = &limitSpec{peer: inProcess, limit: ample}
	redisRate   = &limitSpec{peer: onRedis, limit: ample}
)

// column builds the rows of one proxy under one load.
type column struct {
	rows    []*row
	traefik bool
	load    load
	ending  string // suffix of the rows' names
}

// add adds a row, and returns it. name follows the proxy's name in the name of the row.
func (c *column) add(name, bar string, base *row, limit *limitSpec) *row {
	proxyName := "Caddy "
	if c.traefik {
		proxyName = "Traefik "
	}
	r := &row{name: proxyName + name + c.ending, bar: bar, base: base, load: c.load, traefik: c.traefik,
		limit: limit}
	c.rows = append(c.rows, r)
	return r
}

// compare adds the rows of the proxy without a limit, with the peer in memory, with the peer on Redis, and
// with our limits: exact, leased and with a policy. It returns the exact row. Above 64 connections it leaves
// out the peer in memory and the policy.
func (c *column) compare() (exactRow *row) {
	fewerRows := c.load.connections > hundred.connections
	itself, redisName, memoryLimit := "mholt/caddy-ratelimit", "redis_rate", caddyRate
	if c.traefik {
		itself, redisName, memoryLimit = "its rateLimit", "its rateLimit", traefikRate
	}
	plain := c.add("plain", "no limit", nil, nil)
	var memory *row
	if !fewerRows {
		memory = c.add("+ "+itself+", in memory", path.Base(itself)+", in memory", plain, memoryLimit)
	}
	redis := c.add("+ "+redisName+", on Redis", redisName+", on Redis", plain, redisRate)
	exactRow = c.add("+ exact", "pg-ratelimit, exact", plain, exact)
	ours := []*row{exactRow, c.add("+ leased", "pg-ratelimit, leased", plain, leased)}
	if !fewerRows {
		ours = append(ours, c.add("+ policy", "pg-ratelimit, policy", plain, withPolicy))
	}
	for _, r := range ours {
		r.memory, r.redis = memory, redis
	}
	return exactRow
}

// allRows returns all rows, in the order of their table.
func allRows() (rows []*row) {
	further := &column{load: hundred}
	with := func(name string, base *row, l load, limit limitSpec) *row {
		further.load = l
		return further.add("+ "+name, "", base, &limit)
	}
	caddy := &column{load: hundred}
	exactCaddy := caddy.compare()
	rows = caddy.rows
	for _, c := range []*column{{load: wide, ending: ", 256 connections"}, {traefik: true, load: hundred},
		{traefik: true, load: wide, ending: ", 256 connections"}} {
		c.compare()
		rows = append(rows, c.rows...)
		if c.traefik && c.ending == "" {
			ask := &column{traefik: true, load: hundred}
			ask.add("+ policy, by forwardAuth", "", rows[len(rows)-1],
				&limitSpec{policy: true, forwardAuth: true}).onlyWithAll = true
			rows = append(rows, ask.rows...)
		}
	}
	// With many keys, a lease for each must not cost more than it saves.
	for _, traefik := range []bool{false, true} {
		for _, keys := range []int{1000, 10000} {
			c := &column{traefik: traefik, load: load{draw: uniform, keys: keys, connections: 64},
				ending: fmt.Sprintf(", %d,000 keys", keys/1000)}
			c.add("+ leased", "", c.add("exact", "", nil, exact), leased)
			rows = append(rows, c.rows...)
		}
	}
	for _, traefik := range []bool{false, true} {
		c := &column{traefik: traefik, load: paced, ending: ", paced"}
		plain := c.add("plain", "", nil, nil)
		c.add("+ exact", "", plain, exact)
		if !traefik {
			c.add("+ leased", "", plain, leased)
		}
		rows = append(rows, c.rows...)
	}

	hot := with("exact, one hot key", exactCaddy, hotKey, *exact)
	with("leased, one hot key", hot, hotKey, *leased)
	with("exact, 3 limits", exactCaddy, hundred,
		limitSpec{limit: ample, zones: []string{"team", "everybody"}})
	with("exact, audit all", exactCaddy, hundred, limitSpec{limit: ample, options: "audit all"})
	with("durable", exactCaddy, hundred, limitSpec{limit: ample, options: "durable"})
	with("durable, synchronous", exactCaddy, hundred,
		limitSpec{limit: ample, options: "durable\nsynchronous_commit"})
	denied := with("exact, 90 % denied", exactCaddy, refusals, limitSpec{limit: scarce})
	with("exact, 90 % denied, audit denied", denied, refusals,
		limitSpec{limit: scarce, options: "audit denied"})
	filled := with("exact, 1 M keys", exactCaddy, load{draw: uniform, keys: million, connections: 64}, *exact)
	zipfLeased := with("leased, 1 M keys, Zipf", filled, load{draw: zipf, keys: million, connections: 64},
		*leased)
	filled.filled, zipfLeased.filled = true, true
	with("policy, 10,000 of 1 M API keys, Zipf",
		with("exact, 10,000 keys, Zipf", exactCaddy, tenZipf, *exact), tenZipf, *withPolicy)
	for _, a := range ratelimit.Algorithms() {
		if a != ratelimit.SlidingWindow && a != ratelimit.InFlight {
			limit := limitSpec{algorithm: a.String(), limit: ample}
			if a == ratelimit.SlidingLog {
				limit.limit = ampleLog // its maximum number of events
			}
			with(a.String(), exactCaddy, hundred, limit)
		}
	}
	for _, r := range further.rows {
		r.onlyWithAll = true
	}
	return append(rows, further.rows...)
}

// choose returns the selected rows, and the rows without a limit that they are compared with. Unless all is
// set, it leaves out the rows that need -all.
func choose(rows []*row, selects func(name string) bool, all bool) []*row {
	chosen := map[*row]bool{}
	for _, r := range rows {
		if r.base != nil && selects(r.name) && (all || !r.onlyWithAll) {
			chosen[r] = true
			chosen[r.base] = chosen[r.base] || r.base.base == nil
		}
	}
	return slices.DeleteFunc(rows, func(r *row) bool { return !chosen[r] })
}
