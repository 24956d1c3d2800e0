package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// row is a line of one of the two tables: a load on a proxy, or on the core.
type row struct {
	name     string
	baseline *row       // the row without a limit or a decision; nil is none
	also     *row       // another row that it is compared with; nil is none
	redis    *row       // the row of a limiter on Redis in the same proxy; nil is none
	before   *row       // the same row of the version before; nil is none
	bar      string     // its name in the picture; "" is not there
	proxy    *proxySpec // nil in a row of the core
	load     load       // on the proxy
	core     *coreLoad  // nil in a row of a proxy
	samples  []sample   // one for each round
}

// sample is what one round has measured of a row, by the titles of the columns. A request
// of the core's rows is one decision.
type sample map[string]float64

// Titles of columns. The first is no column but the sum of the next three.
const (
	cpuAll     = "CPU"
	cpuProxy   = "CPU µs/request: proxy" // or this process, in the core's rows
	cpuStore   = "store"                 // Postgres, or Redis
	cpuWrk     = "wrk"
	perSecond  = "requests/s"
	p50        = "p50 ms"
	p99        = "p99 ms"
	statements = "statements/request" // of Postgres, that write
	walBytes   = "WAL bytes/request"
	objects    = "objects/request" // that a Caddy allocates
	refused    = "refused %"
	wrong      = "wrong" // not in the table: requests without an answer, or with one that they should not have
)

// proxySpec says how a proxy is configured. Rows that share a proxySpec share the
// process.
type proxySpec struct {
	name    string
	traefik bool       // or else Caddy
	before  bool       // with the version before
	limit   *limitSpec // nil is none
	shares  *proxySpec // count in the database of this proxy; nil: in one of its own
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

// Parts of the names of rows.
const (
	leased = ", leased"          // of a row like the one before, with leases
	older  = ", before"          // of the same row of the version before
	wide   = ", 256 connections" // of a row with more connections
)

// Names of the figures that are no rows.
const (
	nameLatency    = "p99 at a third of the plain throughput"
	nameMemory     = "memory"
	nameIdentities = "memory for API keys"
	nameFlood      = "invented keys"
	namePages      = "50 pages"
)

var figureNames = []string{nameLatency, nameMemory, nameFlood, namePages}

const (
	million = 1000000
	ample   = "100000000 1h" // a quota that no load uses up
	share   = "5%"           // what leased rows may take in advance
	scarce  = "1 1h"         // a quota that is used up at once

	// A quota that no load uses up, for limiters that keep the time of each event.
	ampleLog = "1000 1s"
)

// The loads, and the proxies that more than one part of the run uses.
var (
	thousand     = load{"uniform", 1000, 64}
	someZipf     = load{"zipf", 10000, 64}
	plainCaddy   = &proxySpec{name: "Caddy plain"}
	exactCaddy   = &proxySpec{name: "Caddy + sliding_window, 1,000 keys", limit: &limitSpec{limit: ample}}
	leasedCaddy  = &proxySpec{name: exactCaddy.name + leased, limit: &limitSpec{limit: ample, lease: share}}
	filledCaddy  = &proxySpec{name: "Caddy with 1 M keys", limit: &limitSpec{limit: ample}}
	filledLeased = &proxySpec{name: "Caddy with 1 M keys, leased", limit: leasedCaddy.limit, shares: filledCaddy}
	policyCaddy  = &proxySpec{name: "Caddy with a policy", limit: &limitSpec{policy: true}}
)

// compared is a proxy with or without a limit, and its name in the picture; "" is not there.
type compared struct {
	proxy *proxySpec
	bar   string
}

// proxyRows are the rows with a proxy, in the order of their table.
func proxyRows() (rows []*row) {
	add := func(name string, baseline, also *row, l load, s *proxySpec) *row {
		r := &row{name: name, baseline: baseline, also: also, load: l, proxy: s}
		rows = append(rows, r)
		return r
	}
	// compare adds the rows of a proxy without a limit, with the peers, and with pg_ratelimit:
	// first with 64 connections, then with 256. It returns those with 64.
	compare := func(specs []compared) (first []*row) {
		for _, connections := range []int{64, 256} {
			ending := map[int]string{256: wide}[connections]
			var base, redis *row
			for _, c := range specs {
				r := add(c.proxy.name+ending, base, nil, load{thousand.distribution, thousand.keys, connections}, c.proxy)
				r.bar = c.bar
				switch {
				case c.proxy.limit == nil:
					base = r
				case c.proxy.inRedis():
					redis = r
				case c.proxy.ours():
					r.redis = redis
				}
				if c.proxy.ours() && c.proxy.limit.lease != "" {
					r.also = rows[len(rows)-2]
				}
			}
			if first == nil {
				first = slices.Clone(rows[len(rows)-len(specs):])
			}
		}
		return first
	}

	first := compare([]compared{
		{plainCaddy, "no limit"},
		{&proxySpec{name: "Caddy + mholt/caddy-ratelimit, in memory", limit: &limitSpec{peer: inProcess, limit: ampleLog}}, "caddy-ratelimit, in memory"},
		{&proxySpec{name: "Caddy + redis_rate, on Redis", limit: &limitSpec{peer: onRedis, limit: ample}}, "redis_rate, on Redis"},
		{exactCaddy, "pg-ratelimit, exact"},
		{leasedCaddy, "pg-ratelimit, leased"},
	})
	plain, memory, exact := first[0], first[1], first[3]
	caddy := func(name string, also *row, l load, limit limitSpec) *row {
		return add("Caddy + "+name, plain, also, l, &proxySpec{name: name, limit: &limit})
	}
	caddy("sliding_window, in memory", memory, thousand, limitSpec{limit: ample, memory: true})
	caddy("sliding_window, 1,000 keys, audit all", exact, thousand, limitSpec{limit: ample, options: "audit all"})
	refusals := load{"denied", 1000, 64}
	denied := caddy("sliding_window, 90 % denied", nil, refusals, limitSpec{limit: scarce})
	caddy("sliding_window, 90 % denied, audit denied", denied, refusals, limitSpec{limit: scarce, options: "audit denied"})
	hot := load{"uniform", 1, 64}
	oneKey := caddy("sliding_window, one hot key", exact, hot, limitSpec{limit: ample})
	caddy("sliding_window, one hot key"+leased, oneKey, hot, limitSpec{limit: ample, lease: share})
	add("Caddy + sliding_window, 1 M keys", plain, exact, load{"uniform", million, 64}, filledCaddy)
	zipf := add("Caddy + sliding_window, 1 M keys, Zipf", plain, exact, load{"zipf", million, 64}, filledCaddy)
	add(zipf.name+leased, plain, zipf, zipf.load, filledLeased)
	caddy("sliding_window, 3 zones", exact, thousand, limitSpec{limit: ample, zones: []string{"team", "everybody"}})
	oneZone := caddy("sliding_window, 10,000 keys, Zipf", nil, someZipf, limitSpec{limit: ample})
	add("Caddy + policy, 10,000 of 1 M API keys, Zipf", plain, oneZone, someZipf, policyCaddy)
	caddy("sliding_window, durable", exact, thousand, limitSpec{limit: ample, options: "durable"})
	caddy("sliding_window, durable, synchronous", exact, thousand, limitSpec{limit: ample, options: "durable\nsynchronous_commit"})
	for _, a := range ratelimit.Algorithms() {
		if a != ratelimit.SlidingWindow && a != ratelimit.InFlight {
			limit := ample
			if a == ratelimit.SlidingLog {
				limit = ampleLog // it takes no more events
			}
			caddy(a.String(), exact, thousand, limitSpec{algorithm: a.String(), limit: limit})
		}
	}

	traefik := func(name, bar string, limit *limitSpec) compared {
		return compared{&proxySpec{name: "Traefik " + name, traefik: true, limit: limit}, bar}
	}
	compare([]compared{
		traefik("plain", "no limit", nil),
		traefik("+ its rateLimit, in memory", "its rateLimit, in memory", &limitSpec{peer: inProcess, limit: ample}),
		traefik("+ its rateLimit, on Redis", "its rateLimit, on Redis", &limitSpec{peer: onRedis, limit: ample}),
		traefik("+ plugin", "pg-ratelimit, exact", &limitSpec{limit: ample}),
		traefik("+ plugin"+leased, "pg-ratelimit, leased", &limitSpec{limit: ample, lease: share}),
		traefik("+ plugin, headers both", "", &limitSpec{limit: ample, headers: "both"}),
		traefik("+ plugin, headers both"+leased, "", &limitSpec{limit: ample, headers: "both", lease: share}),
	})
	return rows
}

// withBefore adds to each row of pg_ratelimit the same row of the version before.
func withBefore(rows []*row) (all []*row) {
	specs := map[*proxySpec]*proxySpec{}
	for _, r := range rows {
		all = append(all, r)
		if !r.proxy.ours() {
			continue
		}
		if specs[r.proxy] == nil {
			s := *r.proxy
			s.name, s.before = s.name+older, true
			if r.proxy == filledCaddy || s.limit.policy {
				s.shares = r.proxy // which has a million rows
			}
			specs[r.proxy] = &s
		}
		r.before = &row{name: r.name + older, baseline: r.baseline, load: r.load, proxy: specs[r.proxy]}
		all = append(all, r.before)
	}
	return all
}

// coreRows are the rows of the core.
func coreRows() []*row {
	bare := &row{name: "Core: bare upsert, batches of 100 on 2 connections", core: &coreLoad{bare: true, stores: 2, callers: 1, batch: 100, keys: 10000}}
	rows := []*row{
		bare,
		{name: "Core: batches of 100 on 2 connections", core: &coreLoad{stores: 2, callers: 1, batch: 100, keys: 10000}},
		{name: "Core: group commit, 64 callers", core: &coreLoad{stores: 1, callers: 64, batch: 1, keys: 10000}},
		{name: "Core: group commit, 256 callers", core: &coreLoad{stores: 1, callers: 256, batch: 1, keys: 10000}},
		{name: "Core: one statement a decision, 8 connections", core: &coreLoad{stores: 8, callers: 1, batch: 1, keys: 10000}},
		{name: "Core: one hot key, 4 stores", core: &coreLoad{stores: 4, callers: 64, batch: 1, keys: 1}},
	}
	for _, r := range rows[1:5] {
		r.baseline = bare
	}
	return rows
}
