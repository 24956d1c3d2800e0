package main

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// row is a line of one of the two tables: a load on a proxy, or on the core.
type row struct {
	name     string
	baseline *row       // the row without a limit or a decision; nil is none
	also     *row       // another row that it is compared with; nil is none
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
	limit   *limitSpec // of pg_ratelimit; nil is none
	builtin bool       // Traefik's own rateLimit
	redis   bool       // Traefik's own rateLimit counts in Redis
	shares  *proxySpec // count in the database of this proxy; nil: in one of its own
}

// limitSpec is a limit of pg_ratelimit.
type limitSpec struct {
	algorithm string   // "" is sliding_window
	limit     string   // events and window
	lease     string   // the share of the quota that the process may take in advance; "" is none
	headers   string   // of the plugin; "" is its default
	options   string   // further lines of a Caddyfile
	zones     []string // further limits of the same request
	memory    bool     // count in the process, without a database
	policy    bool     // a rule of the policy for each tier, instead of limits of the configuration; see policyRowsOf
}

// inPostgres tells whether the proxy counts in Postgres.
func (s *proxySpec) inPostgres() bool { return s.limit != nil && !s.limit.memory }

// Parts of the names of rows.
const (
	leased = ", leased"          // of a row like the one before, with leases
	wide   = ", 256 connections" // of a row with more connections
)

// Names of the figures that are no rows.
const (
	nameLatency    = "p99 at a third of the plain throughput"
	nameMemory     = "memory"
	nameIdentities = "memory for API keys"
	nameFlood      = "invented keys"
)

var figureNames = []string{nameLatency, nameMemory, nameFlood}

const (
	million = 1000000
	ample   = "100000000 1h" // a quota that no load uses up
	share   = "5%"           // what leased rows may take in advance
	scarce  = "1 1h"         // a quota that is used up at once
)

// The loads, and the proxies that more than one part of the run uses.
var (
	thousand     = load{"uniform", 1000, 64}
	someZipf     = load{"zipf", 10000, 64}
	plainCaddy   = &proxySpec{name: "Caddy plain"}
	exactCaddy   = &proxySpec{name: "Caddy, exact", limit: &limitSpec{limit: ample}}
	leasedCaddy  = &proxySpec{name: "Caddy, leased", limit: &limitSpec{limit: ample, lease: share}}
	filledCaddy  = &proxySpec{name: "Caddy with 1 M keys", limit: &limitSpec{limit: ample}}
	filledLeased = &proxySpec{name: "Caddy with 1 M keys, leased", limit: leasedCaddy.limit, shares: filledCaddy}
	policyCaddy  = &proxySpec{name: "Caddy with a policy", limit: &limitSpec{policy: true}}
)

// proxyRows are the rows with a proxy, in the order of their table.
func proxyRows() (rows []*row) {
	add := func(name string, baseline, also *row, l load, s *proxySpec) *row {
		r := &row{name: name, baseline: baseline, also: also, load: l, proxy: s}
		rows = append(rows, r)
		return r
	}
	// again adds a row again, with more connections.
	again := func(r, baseline, also *row) *row {
		return add(r.name+wide, baseline, also, load{r.load.distribution, r.load.keys, 256}, r.proxy)
	}

	plain := add("Caddy plain", nil, nil, thousand, plainCaddy)
	caddy := func(name string, also *row, l load, limit limitSpec) *row {
		return add("Caddy + "+name, plain, also, l, &proxySpec{name: name, limit: &limit})
	}
	caddy("sliding_window, in memory", nil, thousand, limitSpec{limit: ample, memory: true})
	exact := add("Caddy + sliding_window, 1,000 keys", plain, nil, thousand, exactCaddy)
	withLease := add(exact.name+leased, plain, exact, thousand, leasedCaddy)
	plainWide := again(plain, nil, nil)
	exactWide := again(exact, plainWide, nil)
	again(withLease, plainWide, exactWide)
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
		if a != ratelimit.SlidingWindow {
			limit := ample
			if a == ratelimit.SlidingLog {
				limit = "1000 1s" // it takes no more events
			}
			caddy(a.String(), exact, thousand, limitSpec{algorithm: a.String(), limit: limit})
		}
	}

	plain = add("Traefik plain", nil, nil, thousand, &proxySpec{name: "Traefik plain", traefik: true})
	add("Traefik + its rateLimit, in memory", plain, nil, thousand, &proxySpec{name: "Traefik, in memory", traefik: true, builtin: true})
	redis := add("Traefik + its rateLimit, on Redis", plain, nil, thousand, &proxySpec{name: "Traefik on Redis", traefik: true, builtin: true, redis: true})
	plainWide = again(plain, nil, nil)
	redisWide := again(redis, plainWide, nil)
	var plugins []*row
	for _, l := range []limitSpec{{}, {lease: share}, {headers: "both"}, {headers: "both", lease: share}} {
		name := "Traefik + plugin"
		if l.headers != "" {
			name += ", headers " + l.headers
		}
		if l.lease != "" {
			name += leased
		}
		l.limit = ample
		plugins = append(plugins, add(name, plain, redis, thousand, &proxySpec{name: name, traefik: true, limit: &l}))
	}
	for _, r := range plugins {
		again(r, plainWide, redisWide)
	}
	return rows
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
	for _, r := range rows[:5] {
		r.baseline = bare
	}
	return rows
}
