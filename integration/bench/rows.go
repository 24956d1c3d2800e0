package main

import (
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// row is a line of the table of proxies: a proxy, and the keys that its load
// has.
type row struct {
	name    string
	proxy   *proxySpec
	keys    keys
	plain   string // the row that it is compared with
	samples []sample
}

// proxyKind is which program a proxy is.
type proxyKind uint8

const (
	onCaddy proxyKind = iota
	onTraefik
)

// proxySpec says how a proxy is configured. Rows that share one share the
// process.
type proxySpec struct {
	name    string
	kind    proxyKind
	limit   *limitSpec // of pg_ratelimit; nil is none
	builtin bool       // Traefik's own rateLimit
	redis   bool       // which counts in Redis
	denies  float64    // the share of requests that the limit is to refuse
	filled  bool       // the million keys are there from the start
}

// limitSpec is a limit of pg_ratelimit.
type limitSpec struct {
	algorithm string
	limit     string
	durable   bool
	sync      bool
	zones     int  // how many limits there are on a request; 0 is one
	memory    bool // count in the process, without a database
}

// counts tells whether the proxy counts in Postgres.
func (s *proxySpec) counts() bool { return s.limit != nil && !s.limit.memory }

// Names of rows that others refer to.
const (
	caddyPlain     = "Caddy plain"
	caddySliding   = "Caddy + sliding_window, 1,000 keys"
	caddyDenied    = "Caddy + sliding_window, 90 % denied"
	caddyOneKey    = "Caddy + sliding_window, one hot key"
	caddyZones     = "Caddy + sliding_window, 3 zones"
	traefikPlain   = "Traefik plain"
	traefikMemory  = "Traefik + its rateLimit, in memory"
	traefikRedis   = "Traefik + its rateLimit, on Redis"
	traefikPlugin  = "Traefik + plugin"
	slidingMillion = "Caddy + sliding_window, 1 M keys"
	slidingZipf    = "Caddy + sliding_window, 1 M keys, Zipf"
)

// ample is a quota that nothing here uses up.
const ample = "1000000 1h"

const slidingWindow = "sliding_window"

// The proxies that more than one part of the run uses.
var (
	plainCaddy   = &proxySpec{name: "caddy plain", kind: onCaddy}
	slidingCaddy = &proxySpec{name: "caddy sliding", kind: onCaddy, limit: &limitSpec{algorithm: slidingWindow, limit: ample}}
	filledCaddy  = &proxySpec{name: "caddy 1M", kind: onCaddy, filled: true, limit: &limitSpec{algorithm: slidingWindow, limit: ample}}
)

// allRows are the rows in the order of the table.
func allRows() []*row {
	var rows []*row
	caddy := func(name string, k keys, s *proxySpec) {
		rows = append(rows, &row{name: name, keys: k, proxy: s, plain: caddyPlain})
	}
	limited := func(name string, k keys, s limitSpec) {
		if s.limit == "" {
			s.limit = ample
		}
		caddy(name, k, &proxySpec{name: strings.ToLower(name), kind: onCaddy, limit: &s})
	}
	caddy(caddyPlain, thousand, plainCaddy)
	limited("Caddy + sliding_window, in memory", thousand, limitSpec{algorithm: slidingWindow, memory: true})
	caddy(caddySliding, thousand, slidingCaddy)
	caddy(caddyDenied, thousand, &proxySpec{name: "caddy denied", kind: onCaddy, denies: 0.9, limit: &limitSpec{algorithm: slidingWindow}})
	limited(caddyOneKey, oneKey, limitSpec{algorithm: slidingWindow})
	caddy(slidingMillion, million, filledCaddy)
	caddy(slidingZipf, millionZipf, filledCaddy)
	limited(caddyZones, thousand, limitSpec{algorithm: slidingWindow, zones: 3})
	limited("Caddy + sliding_window, durable", thousand, limitSpec{algorithm: slidingWindow, durable: true})
	limited("Caddy + sliding_window, durable, synchronous", thousand, limitSpec{algorithm: slidingWindow, durable: true, sync: true})
	for _, name := range otherAlgorithms() {
		limited("Caddy + "+name, thousand, limitSpec{algorithm: name, limit: ampleFor(name)})
	}
	traefik := func(name string, s *proxySpec) {
		s.name, s.kind = strings.ToLower(name), onTraefik
		rows = append(rows, &row{name: name, keys: thousand, proxy: s, plain: traefikPlain})
	}
	traefik(traefikPlain, &proxySpec{})
	traefik(traefikMemory, &proxySpec{builtin: true})
	traefik(traefikRedis, &proxySpec{builtin: true, redis: true})
	traefik(traefikPlugin, &proxySpec{limit: &limitSpec{algorithm: slidingWindow, limit: ample}})
	return rows
}

// otherAlgorithms are all but sliding_window, by their names.
func otherAlgorithms() []string {
	var names []string
	for a := ratelimit.Algorithm(0); ; a++ {
		name := a.String()
		if _, err := ratelimit.ParseAlgorithm(name); err != nil {
			return names
		}
		if name != slidingWindow {
			names = append(names, name)
		}
	}
}

// ampleFor is ample where the algorithm takes so much, or else the most that a
// key may have in a second.
func ampleFor(algorithm string) string {
	a, err := ratelimit.ParseAlgorithm(algorithm)
	l := ratelimit.Limit{Prefix: "bench", Algorithm: a, Events: 1000000, Window: time.Hour}
	if err == nil && l.Validate() == nil {
		return ample
	}
	return "1000 1s"
}

// allNames are the names that -only chooses from.
func allNames() []string {
	var names []string
	for _, r := range allRows() {
		names = append(names, r.name)
	}
	for _, r := range allCoreRows() {
		names = append(names, r.name)
	}
	return append(names, namePace, nameAllocations, nameMemory)
}
