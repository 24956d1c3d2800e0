package main

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// row is a line of a table: a load on a proxy.
type row struct {
	name   string
	base   *row   // the row that it is compared with; nil is none
	memory *row   // the row of a limiter in the memory of the same proxy; nil is none
	redis  *row   // the row of a limiter on Redis in the same proxy; nil is none
	bar    string // its name in the picture; "" is not there
	proxy  *proxySpec
	load   load
	filled bool // a million keys are in the tables
	pages  bool // pages are open on its database
	more   bool // only with the flag -all

	control *row     // while and after it is measured: base, with samples of the same rounds
	samples []sample // one for each round
	wrong   int      // requests without an answer, or with one that they should not have
}

// proxySpec says how a proxy is configured.
type proxySpec struct {
	name    string
	traefik bool       // or else Caddy
	before  bool       // with the version before
	limit   *limitSpec // nil is none
}

// limitSpec is a limit of pg_ratelimit, or of another limiter.
type limitSpec struct {
	peer      limiter  // "" is pg_ratelimit. A peer takes only a limit.
	algorithm string   // "" is sliding_window
	limit     string   // events and window
	lease     string   // the share of the quota that the process may take in advance; "" is none
	headers   string   // of the plugin; "" is its default
	options   string   // further lines of a Caddyfile; Traefik takes `audit …` alone
	zones     []string // further limits of the same request
	memory    bool     // count in the process, without a database
	policy    bool     // a rule of the policy for each tier, instead of limits of the configuration; see policyRowsOf
}

// events are the hits that the limit admits in its window.
func (l *limitSpec) events() int {
	events, _, _ := strings.Cut(l.limit, " ")
	return must(strconv.Atoi(events))
}

// window is the length of the limit's window.
func (l *limitSpec) window() string {
	_, window, _ := strings.Cut(l.limit, " ")
	return window
}

// limiter is one of the peers: limiters that others have made.
type limiter string

const (
	inProcess limiter = "in memory" // mholt/caddy-ratelimit, or Traefik's rateLimit
	onRedis   limiter = "on Redis"  // redis_rate, or Traefik's rateLimit with its option redis
)

// ours tells whether the proxy has a limit of pg_ratelimit.
func (s *proxySpec) ours() bool { return s.limit != nil && s.limit.peer == "" }

// inPostgres tells whether the proxy counts in Postgres.
func (s *proxySpec) inPostgres() bool { return s.ours() && !s.limit.memory }

// inRedis tells whether the proxy counts in Redis.
func (s *proxySpec) inRedis() bool { return s.limit != nil && s.limit.peer == onRedis }

// Names of the figures that are no rows. They are measured with the flag -all.
const (
	nameMemory = "memory"
	nameFlood  = "invented keys"
)

const (
	million = 1000000
	ample   = "100000000 1h" // a quota that no load uses up
	share   = "5%"           // what leased rows may take in advance
	scarce  = "1 1h"         // a quota that is used up at once

	// A quota that no load uses up, for limiters that keep the time of each event.
	ampleLog = "1000 1s"
)

// The loads. Most have few keys: each is so busy that leases serve it, even while something else
// slows the machine down.
var (
	hundred  = load{draw: uniform, keys: 100, connections: 64}
	wide     = load{draw: uniform, keys: 100, connections: 256}
	paced    = load{draw: uniform, keys: 100, connections: 64, rate: 500}
	calm     = load{draw: uniform, keys: 100, connections: 64, pause: 2 * time.Millisecond}
	hotKey   = load{draw: uniform, keys: 1, connections: 64}
	refusals = load{draw: used, keys: 1000, connections: 64}
	tenZipf  = load{draw: zipf, keys: 10000, connections: 64}
)

// The limits. Those of peers are of limiters in the memory of a Caddy and of a Traefik, and on Redis.
var (
	exact      = &limitSpec{limit: ample}
	leased     = &limitSpec{limit: ample, lease: share}
	withPolicy = &limitSpec{policy: true}
	caddyRate  = &limitSpec{peer: inProcess, limit: ampleLog}
	itsRate    = &limitSpec{peer: inProcess, limit: ample}
	redisRate  = &limitSpec{peer: onRedis, limit: ample}
)

// column makes the rows of one proxy under one load.
type column struct {
	rows    []*row
	traefik bool
	load    load
	ending  string // of their names
}

// add adds a row. name is what follows the proxy's in the row's name.
func (c *column) add(name, bar string, base *row, limit *limitSpec) *row {
	name = map[bool]string{false: "Caddy ", true: "Traefik "}[c.traefik] + name + c.ending
	r := &row{name: name, bar: bar, base: base, load: c.load, proxy: &proxySpec{name: name, traefik: c.traefik, limit: limit}}
	c.rows = append(c.rows, r)
	return r
}

// compare adds the rows of a proxy without a limit, with peers, and with pg_ratelimit. Without few, these are all of them.
func (c *column) compare(few bool) (exactRow *row) {
	memory, redis := compared{"+ mholt/caddy-ratelimit, in memory", "caddy-ratelimit, in memory", caddyRate}, compared{"+ redis_rate, on Redis", "redis_rate, on Redis", redisRate}
	if c.traefik {
		memory, redis = compared{"+ its rateLimit, in memory", "its rateLimit, in memory", itsRate}, compared{"+ its rateLimit, on Redis", "its rateLimit, on Redis", redisRate}
	}
	plain := c.add("plain", "no limit", nil, nil)
	var inMemory *row
	if !few {
		inMemory = c.add(memory.name, memory.bar, plain, memory.limit)
	}
	onRedis := c.add(redis.name, redis.bar, plain, redis.limit)
	for _, our := range []compared{{"+ exact", "pg-ratelimit, exact", exact}, {"+ leased", "pg-ratelimit, leased", leased}, {"+ policy", "pg-ratelimit, policy", withPolicy}} {
		if few && our.limit.policy {
			continue
		}
		r := c.add(our.name, our.bar, plain, our.limit)
		r.memory, r.redis = inMemory, onRedis
		if our.limit == exact {
			exactRow = r
		}
	}
	return exactRow
}

// compared is a limiter, and its name in the picture.
type compared struct {
	name, bar string
	limit     *limitSpec
}

// allRows are all rows, in the order of their table.
func allRows() (rows []*row) {
	caddy, caddyWide := &column{load: hundred}, &column{load: wide, ending: ", 256 connections"}
	traefik, traefikWide := &column{traefik: true, load: hundred}, &column{traefik: true, load: wide, ending: ", 256 connections"}
	exactCaddy := caddy.compare(false)
	caddyWide.compare(true)
	exactTraefik := traefik.compare(false)
	traefikWide.compare(true)
	caddyPaced, traefikPaced := &column{load: paced, ending: ", paced"}, &column{traefik: true, load: paced, ending: ", paced"}
	plain := caddyPaced.add("plain", "", nil, nil)
	caddyPaced.add("+ exact", "", plain, exact)
	caddyPaced.add("+ leased", "", plain, leased)
	traefikPaced.add("+ exact", "", traefikPaced.add("plain", "", nil, nil), exact)
	for _, c := range []*column{caddy, caddyWide, traefik, traefikWide, caddyPaced, traefikPaced} {
		rows = append(rows, c.rows...)
	}

	further := &column{load: hundred}
	with := func(name string, base *row, l load, limit limitSpec) *row {
		further.load = l
		return further.add("+ "+name, "", base, &limit)
	}
	hot := with("exact, one hot key", exactCaddy, hotKey, *exact)
	with("leased, one hot key", hot, hotKey, *leased)
	with("exact, 3 limits", exactCaddy, hundred, limitSpec{limit: ample, zones: []string{"team", "everybody"}})
	with("exact, audit all", exactCaddy, hundred, limitSpec{limit: ample, options: "audit all"})
	with("durable", exactCaddy, hundred, limitSpec{limit: ample, options: "durable"})
	with("durable, synchronous", exactCaddy, hundred, limitSpec{limit: ample, options: "durable\nsynchronous_commit"})
	with("in memory", exactCaddy, hundred, limitSpec{limit: ample, memory: true})
	denied := with("exact, 90 % denied", exactCaddy, refusals, limitSpec{limit: scarce})
	with("exact, 90 % denied, audit denied", denied, refusals, limitSpec{limit: scarce, options: "audit denied"})
	filled := with("exact, 1 M keys", exactCaddy, load{draw: uniform, keys: million, connections: 64}, *exact)
	zipfLeased := with("leased, 1 M keys, Zipf", filled, load{draw: zipf, keys: million, connections: 64}, *leased)
	filled.filled, zipfLeased.filled = true, true
	with("policy, 10,000 of 1 M API keys, Zipf", with("exact, 10,000 keys, Zipf", exactCaddy, tenZipf, *exact), tenZipf, *withPolicy)
	for _, a := range ratelimit.Algorithms() {
		if a != ratelimit.SlidingWindow && a != ratelimit.InFlight {
			limit := limitSpec{algorithm: a.String(), limit: ample}
			if a == ratelimit.SlidingLog {
				limit.limit = ampleLog // it takes no more events
			}
			with(a.String(), exactCaddy, hundred, limit)
		}
	}
	for _, traefik := range []bool{false, true} {
		further.traefik = traefik
		watched := with("leased, audit denied", map[bool]*row{false: exactCaddy, true: exactTraefik}[traefik], calm, limitSpec{limit: ample, lease: share, options: "audit denied"})
		with("leased, audit denied, 50 pages", watched, calm, *watched.proxy.limit).pages = true
	}
	with("exact, headers both", exactTraefik, hundred, limitSpec{limit: ample, headers: "both"})
	for _, r := range further.rows {
		r.more = true
	}
	return append(rows, further.rows...)
}

// choose returns the rows that wants accepts, and those without a base that they are compared with. Without all,
// it leaves further rows out.
func choose(rows []*row, wants func(name string) bool, all bool) []*row {
	chosen := map[*row]bool{}
	for _, r := range rows {
		if r.base != nil && wants(r.name) && (all || !r.more) {
			chosen[r] = true
			chosen[r.base] = chosen[r.base] || r.base.base == nil
		}
	}
	return slices.DeleteFunc(rows, func(r *row) bool { return !chosen[r] })
}
