package main

import (
	"fmt"
	"math"
	"slices"
)

// target is a promise about a figure.
type target struct {
	what, want, measured string
	outcome              string // "met", "missed" or "not measured"
}

// judge compares a figure with the wanted value: the least, or the most if atMost.
func judge(figure, want float64, atMost bool) string {
	switch {
	case math.IsNaN(figure):
		return "not measured"
	case figure == want, (figure < want) == atMost:
		return "met"
	}
	return "missed"
}

// targets are all of them, with what was measured.
func (b *bench) targets() (all []target) {
	ratio := func(what, name, baseline string, want float64) {
		found := b.ratio(name, baseline)
		all = append(all, target{what, "at least " + places(2)(want), found.text(places(2)), judge(found.median, want, false)})
	}
	ratio("Caddy, leased, 1,000 keys, all admitted ÷ Caddy plain", caddySliding+leased, caddyPlain, 0.88)
	ratio("the same with one hot key", caddyOneKey+leased, caddyPlain, 0.95)
	ratio("the same with 1 M keys, Zipf", caddyZipf+leased, caddyPlain, 0.65)
	ratio("Caddy, exact, 1,000 keys, all admitted ÷ Caddy plain", caddySliding, caddyPlain, 0.68)
	ratio("the same with 90 % denied", caddyDenied, caddyPlain, 0.95)
	ratio("audit denied, 90 % denied ÷ the same without a history", caddyAuditDenied, caddyDenied, 0.97)
	ratio("audit all, 1,000 keys, all admitted ÷ the same without a history", caddyAudited, caddySliding, 0.95)
	ratio("three zones on one request ÷ one zone", caddyZones, caddySliding, 0.78)
	ratio("policy, 10,000 of 1 M API keys, Zipf ÷ the same limit as a zone", caddyPolicy, caddySomeZipf, 0.9)
	ratio("Traefik plugin, leased ÷ Traefik's own rateLimit on Redis", traefikPlugin+leased, traefikRedis, 1.15)
	ratio("the same ÷ Traefik plain", traefikPlugin+leased, traefikPlain, 0.85)
	ratio("core: decisions/s ÷ bare batched upsert of the same rows", coreBatches, coreBare, 0.75)
	ratio("core: decisions/s of 256 callers, group commit ÷ the same upsert", coreGroup, coreBare, 0.9)

	hot, added, allocations := spreadOf(b.rates(coreHot)), spreadOf(nil), spreadOf(nil)
	if b.latency != nil {
		added = b.latency.addedLeased
	}
	if b.allocations != nil {
		allocations = *b.allocations
	}
	all = append(all,
		target{"core: one hot key, 4 processes", "at least 100,000/s", hot.text(thousands), judge(hot.median, 100000, false)},
		target{"added p99 at a third of the plain throughput, leased", "at most 0.3 ms", added.text(milliseconds), judge(added.median, 0.3, true)},
		target{"allocations a decision in Caddy, admitted", "at most 6", allocations.text(places(2)), judge(allocations.median, 6, true)},
	)
	growth := target{"memory for 1 M live keys in one proxy process", "no growth", "–", "not measured"}
	bytes := target{"memory for 1 M live keys in Postgres, with indexes", "at most 220 bytes a key", "–", "not measured"}
	if m := b.memory; m != nil {
		megabytes := func(n int) float64 { return float64(n) / (1 << 20) }
		growth.measured = fmt.Sprintf("%+.1f MB resident (%.0f MB before), %+.2f MB live", megabytes(m.after-m.before), megabytes(m.before), megabytes(m.live))
		growth.outcome = judge(float64(m.after-m.before), 8*fillRequests, true) // less than a pointer for each key is noise
		bytes.measured = fmt.Sprintf("%.0f bytes a key", m.bytesAKey)
		bytes.outcome = judge(m.bytesAKey, 220, true)
	}
	return slices.Concat(all, []target{growth, bytes}, b.policyTargets())
}
