package main

import "cmp"

// row is a line of one of the two tables: a load on a proxy, or on the core.
type row struct {
	name     string
	baseline string     // the row that it is compared with; "" is none
	proxy    *proxySpec // nil in a row of the core
	keys     keys       // of the load on a proxy
	core     coreLoad   // in a row of the core
	samples  []sample   // one for each round
}

// sample is what one round has measured of a row. A request of the core's rows is
// one decision.
type sample struct {
	rate       float64 // requests a second
	p50, p99   float64 // milliseconds
	clientCPU  float64 // microseconds a request: of the proxy, or of the core's processes
	storeCPU   float64 // the same of Postgres, or of Redis
	wrkCPU     float64 // the same of wrk
	statements float64 // a request
	wal        float64 // bytes of Postgres's write-ahead log a request
	refused    float64 // the share of the requests that were refused
	failed     float64 // requests without an answer, or with one that they should not have
}

// proxySpec says how a proxy is configured. Rows that share a proxySpec share the
// process.
type proxySpec struct {
	name     string
	traefik  bool       // or else Caddy
	limit    *limitSpec // of pg_ratelimit; nil is none
	builtin  bool       // Traefik's own rateLimit
	redis    bool       // Traefik's own rateLimit counts in Redis
	denies   float64    // the share of requests that the limit is to refuse
	likewise *proxySpec // refuse with the limit that was found for this proxy; nil: find one
	shares   *proxySpec // count in the database of this proxy; nil: in one of its own
}

// limitSpec is a limit of pg_ratelimit.
type limitSpec struct {
	Algorithm string
	Limit     string   // events and window
	Lease     string   // the share of the quota that the process may take in advance; "" is none
	Options   string   // further lines of a Caddyfile
	Zones     []string // further limits of the same request
	Memory    bool     // count in the process, without a database
	Policy    bool     // a rule of the policy for each tier, instead of limits of the configuration; see policyRowsOf
}

// inPostgres tells whether the proxy counts in Postgres.
func (s *proxySpec) inPostgres() bool { return s.limit != nil && !s.limit.Memory }

// Names of rows that others refer to.
const (
	caddyPlain       = "Caddy plain"
	caddySliding     = "Caddy + sliding_window, 1,000 keys"
	caddyDenied      = "Caddy + sliding_window, 90 % denied"
	caddyAudited     = "Caddy + sliding_window, 1,000 keys, audit all"
	caddyAuditDenied = "Caddy + sliding_window, 90 % denied, audit denied"
	caddyOneKey      = "Caddy + sliding_window, one hot key"
	caddyZipf        = "Caddy + sliding_window, 1 M keys, Zipf"
	caddyZones       = "Caddy + sliding_window, 3 zones"
	caddyPolicy      = "Caddy + policy, 10,000 of 1 M API keys, Zipf"
	caddySomeZipf    = "Caddy + sliding_window, 10,000 keys, Zipf"
	traefikPlain     = "Traefik plain"
	traefikRedis     = "Traefik + its rateLimit, on Redis"
	traefikPlugin    = "Traefik + plugin"
	leased           = ", leased" // the end of the name of a row like the one before, with leases
	coreBare         = "Core: bare upsert, batches of 100 on 2 connections"
	coreBatches      = "Core: batches of 100 on 2 connections"
	coreGroup        = "Core: group commit, 256 callers"
	coreHot          = "Core: one hot key, 4 processes"
)

// Names of the figures that are no rows.
const (
	nameLatency     = "p99 at a third of the plain throughput"
	nameAllocations = "allocations"
	nameMemory      = "memory"
	nameIdentities  = "memory for API keys"
	nameFlood       = "invented keys"
)

// ample is a quota that no load uses up.
const (
	ampleEvents = 100000000
	ample       = "100000000 1h"
)

// share is what leased rows may take in advance.
const share = "5%"

// The keys of the loads, and the proxies that more than one part of the run uses.
var (
	oneKey       = keys{"uniform", 1}
	thousand     = keys{"uniform", 1000}
	million      = keys{"uniform", 1000000}
	millionZipf  = keys{"zipf", 1000000}
	someZipf     = keys{"zipf", 10000}
	plainCaddy   = &proxySpec{name: caddyPlain}
	slidingCaddy = &proxySpec{name: caddySliding, limit: &limitSpec{Algorithm: "sliding_window", Limit: ample}}
	leasedCaddy  = &proxySpec{name: caddySliding + leased, limit: &limitSpec{Algorithm: "sliding_window", Limit: ample, Lease: share}}
	filledCaddy  = &proxySpec{name: "Caddy with 1 M keys", limit: &limitSpec{Algorithm: "sliding_window", Limit: ample}}
	filledLeased = &proxySpec{name: "Caddy with 1 M keys" + leased, limit: leasedCaddy.limit, shares: filledCaddy}
	deniedCaddy  = &proxySpec{name: caddyDenied, denies: 0.9, limit: &limitSpec{Algorithm: "sliding_window"}}
	policyCaddy  = &proxySpec{name: "Caddy with a policy", limit: &limitSpec{Policy: true}}
)

// proxyRows are the rows with a proxy, in the order of their table.
func proxyRows() (rows []*row) {
	caddy := func(name string, k keys, s *proxySpec) {
		rows = append(rows, &row{name: name, baseline: caddyPlain, keys: k, proxy: s})
	}
	sliding := func(name string, k keys, l limitSpec) {
		l.Algorithm, l.Limit = "sliding_window", ample
		caddy(name, k, &proxySpec{name: name, limit: &l})
	}
	caddy(caddyPlain, thousand, plainCaddy)
	sliding("Caddy + sliding_window, in memory", thousand, limitSpec{Memory: true})
	caddy(caddySliding, thousand, slidingCaddy)
	caddy(caddySliding+leased, thousand, leasedCaddy)
	sliding(caddyAudited, thousand, limitSpec{Options: "audit all"})
	caddy(caddyDenied, thousand, deniedCaddy)
	caddy(caddyAuditDenied, thousand, &proxySpec{name: caddyAuditDenied, denies: 0.9, likewise: deniedCaddy, limit: &limitSpec{Algorithm: "sliding_window", Options: "audit denied"}})
	sliding(caddyOneKey, oneKey, limitSpec{})
	sliding(caddyOneKey+leased, oneKey, limitSpec{Lease: share})
	caddy("Caddy + sliding_window, 1 M keys", million, filledCaddy)
	caddy(caddyZipf, millionZipf, filledCaddy)
	caddy(caddyZipf+leased, millionZipf, filledLeased)
	sliding(caddyZones, thousand, limitSpec{Zones: []string{"team", "everybody"}})
	caddy(caddyPolicy, someZipf, policyCaddy)
	sliding(caddySomeZipf, someZipf, limitSpec{})
	sliding("Caddy + sliding_window, durable", thousand, limitSpec{Options: "durable"})
	sliding("Caddy + sliding_window, durable, synchronous", thousand, limitSpec{Options: "durable\n\t\tsynchronous_commit"})
	for _, l := range otherAlgorithms() {
		caddy("Caddy + "+l.Algorithm, thousand, &proxySpec{name: "Caddy + " + l.Algorithm, limit: &l})
	}

	traefik := func(name string, s *proxySpec) {
		s.name, s.traefik = name, true
		rows = append(rows, &row{name: name, baseline: traefikPlain, keys: thousand, proxy: s})
	}
	traefik(traefikPlain, &proxySpec{})
	traefik("Traefik + its rateLimit, in memory", &proxySpec{builtin: true})
	traefik(traefikRedis, &proxySpec{builtin: true, redis: true})
	traefik(traefikPlugin, &proxySpec{limit: &limitSpec{Algorithm: "sliding_window", Limit: ample}})
	traefik(traefikPlugin+leased, &proxySpec{limit: &limitSpec{Algorithm: "sliding_window", Limit: ample, Lease: share}})
	return rows
}

// coreRows are the rows of the core.
func coreRows() (rows []*row) {
	core := func(name, baseline string, l coreLoad) {
		l.Keys = cmp.Or(l.Keys, 10000)
		l.Processes = cmp.Or(l.Processes, 1)
		rows = append(rows, &row{name: name, baseline: baseline, core: l})
	}
	core(coreBare, coreBare, coreLoad{Bare: true, Stores: 2, Callers: 1, Batch: 100})
	core(coreBatches, coreBare, coreLoad{Stores: 2, Callers: 1, Batch: 100})
	core("Core: group commit, 64 callers", coreBare, coreLoad{Stores: 1, Callers: 64, Batch: 1})
	core(coreGroup, coreBare, coreLoad{Stores: 1, Callers: 256, Batch: 1})
	core("Core: one statement a decision, 8 connections", coreBare, coreLoad{Stores: 8, Callers: 1, Batch: 1})
	core(coreHot, "", coreLoad{Processes: 4, Stores: 1, Callers: 64, Batch: 1, Keys: 1})
	core("Core: two limits, 0 % refused", "", coreLoad{TwoLimits: true, Stores: 1, Callers: 64, Batch: 1})
	core("Core: two limits, 50 % refused", "", coreLoad{TwoLimits: true, Refused: 0.5, Stores: 1, Callers: 64, Batch: 1})
	core("Core: two limits, 90 % refused", "", coreLoad{TwoLimits: true, Refused: 0.9, Stores: 1, Callers: 64, Batch: 1})
	return rows
}
