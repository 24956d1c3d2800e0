package main

import (
	"fmt"
	"math"
)

// target is a promise about what is measured.
type target struct {
	what  string
	want  string
	value string
	state state
}

// state is what became of a target.
type state uint8

const (
	notMeasured state = iota
	met
	missed
)

func (s state) String() string { return [...]string{"not measured", "met", "missed"}[s] }

// atLeast and atMost judge a measured value.
func atLeast(value, want float64) state {
	return judge(value, value >= want)
}

func atMost(value, want float64) state {
	return judge(value, value <= want)
}

func judge(value float64, ok bool) state {
	switch {
	case math.IsNaN(value):
		return notMeasured
	case ok:
		return met
	}
	return missed
}

// The targets' values.
const (
	wantSliding     = 0.80
	wantDenied      = 0.95
	wantOneKey      = 0.85
	wantZones       = 0.75
	wantTraefik     = 1.2
	wantCore        = 0.9
	wantHot         = 100000 // decisions a second
	wantAddedP99    = 1.0    // milliseconds
	wantAllocations = 6.0
	wantBytesAKey   = 220.0
	// So little is noise: it is less than a pointer for each of a million keys.
	wantGrowth = 8 * fillRequests
)

// targets are all of them, with what was measured.
func targets(r *results) []target {
	var all []target
	ratio := func(what, a, b string, want float64) {
		found := ratioOf(r.rates(a), r.rates(b))
		all = append(all, target{what, "at least " + places(2)(want), found.text(places(2)), atLeast(found.median, want)})
	}
	ratio("Caddy + pg_ratelimit, sliding window, 1,000 keys, all admitted ÷ Caddy plain", caddySliding, caddyPlain, wantSliding)
	ratio("the same with 90 % denied", caddyDenied, caddyPlain, wantDenied)
	ratio("the same with one hot key", caddyOneKey, caddyPlain, wantOneKey)
	ratio("three zones on one request ÷ one zone", caddyZones, caddySliding, wantZones)
	ratio("Traefik plugin ÷ Traefik's own rateLimit on Redis", traefikPlugin, traefikRedis, wantTraefik)
	ratio("core: decisions/s ÷ bare batched upsert of the same rows", coreDirect, coreBare, wantCore)
	ratio("core: decisions/s of 256 callers, group commit ÷ the same upsert", coreGroup, coreBare, wantCore)

	hot := spreadOf(r.rates(coreHot))
	all = append(all, target{"core: one hot key, 4 processes", "at least " + thousands(wantHot) + "/s", hot.text(thousands), atLeast(hot.median, wantHot)})

	added := spreadOf(nil)
	if r.pace != nil {
		added = r.pace.added
	}
	all = append(all, target{"added p99 at half of the plain throughput", "at most 1 ms", added.text(milliseconds), atMost(added.median, wantAddedP99)})

	allocations := spreadOf(nil)
	if r.allocations != nil {
		allocations = *r.allocations
	}
	all = append(all, target{"allocations a decision in Caddy, admitted", "at most 6", allocations.text(places(2)), atMost(allocations.median, wantAllocations)})

	growth := target{"memory for 1 M live keys in one proxy process", "no growth", "–", notMeasured}
	bytes := target{"memory for 1 M live keys in Postgres, with indexes", "at most 220 bytes a key", "–", notMeasured}
	if m := r.memory; m != nil {
		growth.value = fmt.Sprintf("%+.1f MB resident (%.0f MB before), %+.2f MB live", megabytes(m.growth()), megabytes(m.before), megabytes(m.live))
		growth.state = atMost(float64(m.growth()), wantGrowth)
		bytes.value = places(0)(m.bytesAKey) + " bytes a key"
		bytes.state = atMost(m.bytesAKey, wantBytesAKey)
	}
	return append(all, growth, bytes)
}

// rates are the rates of a row, or none if it was not measured.
func (r *results) rates(name string) []float64 {
	for _, row := range r.rows {
		if row.name == name {
			return rates(row.samples)
		}
	}
	for _, row := range r.core {
		if row.name == name {
			return coreRates(row.samples)
		}
	}
	return nil
}

func coreRates(samples []coreSample) []float64 {
	return of(samples, func(s coreSample) float64 { return s.rate })
}

func megabytes(n int64) float64 { return float64(n) / (1 << 20) }

func milliseconds(v float64) string { return places(2)(v) + " ms" }
