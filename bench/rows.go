package main

import (
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
	gateway bool   // whether the proxy is neither, but a gateway for language models on Node
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
	peer      limiter  // "": pg_ratelimit. With a peer, only limit and zones are used.
	algorithm string   // "": sliding_window
	limit     string   // events and window
	lease     string   // maximum share of the quota in a lease; "": no lease
	unit      string   // "": requests
	options   string   // further lines of a Caddyfile, without an effect on Traefik
	zones     []string // further limits of the same request, in Caddy only, and not in memory
	// policy replaces the limits of the configuration by the rules of policyRowsOf.
	policy      bool
	budgets     bool // the policy has budgets in money
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

// Loads. Most loads have few keys. Each key then gets so many requests that leases serve it even while other
// work slows the machine down.
var (
	usualLoad = load{draw: uniform, keyCount: 100, connections: 64}
	manyConns = load{draw: uniform, keyCount: 100, connections: 256}
	paced     = load{draw: uniform, keyCount: 100, connections: 64, rate: 500}
	prompts   = load{draw: uniform, keyCount: 100, connections: 64, prompts: true}
	hotKey    = load{draw: uniform, keyCount: 1, connections: 64}
	refusals  = load{draw: tenthNew, keyCount: 1000, connections: 64}
	zipf10k   = load{draw: zipf, keyCount: 10000, connections: 64}
)

// Limits of pg_ratelimit.
var (
	exact      = &limitSpec{limit: ample}
	leased     = &limitSpec{limit: ample, lease: share}
	tokens     = &limitSpec{limit: ample, unit: "tokens"}
	withPolicy = &limitSpec{policy: true}
	budgets    = &limitSpec{policy: true, budgets: true}
	exact4     = &limitSpec{limit: ample, zones: moreZones}
)

// Limits of the peers in the memory of Caddy and of Traefik, and on Redis.
var (
	caddyRate   = &limitSpec{peer: inProcess, limit: ampleLog}
	traefikRate = &limitSpec{peer: inProcess, limit: ample}
	redisRate   = &limitSpec{peer: onRedis, limit: ample}
	redisRate4  = &limitSpec{peer: onRedis, limit: ample, zones: moreZones}
)

// moreZones are the second to fourth limit of the rows with four limits on each request.
var moreZones = []string{"team", "route", "everybody"}

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
// with our limits: exact, leased and with a policy. For a Caddy, it adds rows with four limits on each
// request, on Redis and exact. It returns the row with one exact limit. Above 64 connections it leaves out
// the peer in memory and the policy.
func (c *column) compare() (exactRow *row) {
	fewerRows := c.load.connections > usualLoad.connections
	memoryName, redisName, memoryLimit := "mholt/caddy-ratelimit", "redis_rate", caddyRate
	if c.traefik {
		memoryName, redisName, memoryLimit = "its rateLimit", "its rateLimit", traefikRate
	}
	plain := c.add("plain", "no limit", nil, nil)
	var memory *row
	if !fewerRows {
		memory = c.add("+ "+memoryName+", in memory", path.Base(memoryName)+", in memory", plain,
			memoryLimit)
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
	if !c.traefik {
		redis4 := c.add("+ 4 limits, redis_rate, on Redis", "", plain, redisRate4)
		c.add("+ 4 limits, exact", "", plain, exact4).redis = redis4
	}
	return exactRow
}

// allRows returns all rows, in the order of their table.
func allRows() (rows []*row) {
	more := &column{load: usualLoad}
	addMore := func(name string, base *row, l load, limit limitSpec) *row {
		more.load = l
		return more.add("+ "+name, "", base, &limit)
	}
	caddy := &column{load: usualLoad}
	exactCaddy := caddy.compare()
	rows = caddy.rows
	for _, c := range []*column{{load: manyConns, ending: ", 256 connections"},
		{traefik: true, load: usualLoad}, {traefik: true, load: manyConns, ending: ", 256 connections"}} {
		c.compare()
		rows = append(rows, c.rows...)
		if c.traefik && c.ending == "" {
			forwarded := &column{traefik: true, load: usualLoad}
			forwarded.add("+ policy, by forwardAuth", "", rows[len(rows)-1],
				&limitSpec{policy: true, forwardAuth: true}).onlyWithAll = true
			rows = append(rows, forwarded.rows...)
		}
	}
	// With many keys, a lease for each must not cost more than it saves.
	for _, traefik := range []bool{false, true} {
		for _, keys := range []int{100, 1000, 10000, 100000} {
			c := &column{traefik: traefik, load: load{draw: uniform, keyCount: keys, connections: 64},
				ending: ", " + formatNumber(float64(keys), 0) + " keys"}
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
	for _, traefik := range []bool{false, true} {
		c := &column{traefik: traefik, load: prompts, ending: ", prompts"}
		plain := c.add("plain", "", nil, nil)
		c.add("+ exact", "", plain, exact)
		c.add("+ tokens", "", plain, tokens)
		c.add("+ budgets", "", plain, budgets)
		if !traefik {
			gateway := c.add("", "", plain, nil)
			gateway.name, gateway.gateway = "Gateway on Node, no limit"+c.ending, true
		}
		rows = append(rows, c.rows...)
	}

	hot := addMore("exact, one hot key", exactCaddy, hotKey, *exact)
	addMore("leased, one hot key", hot, hotKey, *leased)
	addMore("exact, 3 limits", exactCaddy, usualLoad,
		limitSpec{limit: ample, zones: []string{"team", "everybody"}})
	addMore("exact, audit all", exactCaddy, usualLoad, limitSpec{limit: ample, options: "audit all"})
	addMore("durable", exactCaddy, usualLoad, limitSpec{limit: ample, options: "durable"})
	addMore("durable, synchronous", exactCaddy, usualLoad,
		limitSpec{limit: ample, options: "durable\nsynchronous_commit"})
	denied := addMore("exact, 90 % denied", exactCaddy, refusals, limitSpec{limit: scarce})
	addMore("exact, 90 % denied, audit denied", denied, refusals,
		limitSpec{limit: scarce, options: "audit denied"})
	filled := addMore("exact, 1 M keys", exactCaddy,
		load{draw: uniform, keyCount: million, connections: 64}, *exact)
	zipfLeased := addMore("leased, 1 M keys, Zipf", filled,
		load{draw: zipf, keyCount: million, connections: 64}, *leased)
	filled.filled, zipfLeased.filled = true, true
	addMore("policy, 10,000 of 1 M API keys, Zipf",
		addMore("exact, 10,000 keys, Zipf", exactCaddy, zipf10k, *exact), zipf10k, *withPolicy)
	for _, a := range ratelimit.Algorithms() {
		if a != ratelimit.SlidingWindow && a != ratelimit.InFlight {
			limit := limitSpec{algorithm: a.String(), limit: ample}
			if a == ratelimit.SlidingLog {
				limit.limit = ampleLog // its maximum number of events
			}
			addMore(a.String(), exactCaddy, usualLoad, limit)
		}
	}
	for _, r := range more.rows {
		r.onlyWithAll = true
	}
	return append(rows, more.rows...)
}

// choose returns the rows for which selects returns true, and each base of these rows that has no base of its
// own. Unless withMore is set, choose leaves out the further rows, which need the flag -all.
func choose(rows []*row, selects func(name string) bool, withMore bool) []*row {
	chosen := map[*row]bool{}
	for _, r := range rows {
		if r.base != nil && selects(r.name) && (withMore || !r.onlyWithAll) {
			chosen[r] = true
			chosen[r.base] = chosen[r.base] || r.base.base == nil
		}
	}
	return slices.DeleteFunc(rows, func(r *row) bool { return !chosen[r] })
}
