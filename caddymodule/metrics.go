package caddymodule

import (
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// All names begin with these two.
const namespace, subsystem = "caddy", "pg_ratelimit"

// metrics are the metrics of the limits among Caddy's. No label has a key, a user or a path:
// there may be millions of them, and they may be secret. docs/metrics.md lists all metrics.
type metrics struct {
	decisions *prometheus.CounterVec
	blocked   *prometheus.CounterVec
	leased    *prometheus.CounterVec
	duration  prometheus.Histogram
	policy    *policyCounters

	settlements *prometheus.CounterVec

	// What the handlers of the config use, for state.
	mu        sync.Mutex // guards all that follows
	collected map[host.Resource]bool
	stores    []collectedStore
	policies  []collectedPolicy
	histories []*history.Writer
}

// newMetrics registers the metrics. Each config has its own registry.
func newMetrics(registry *prometheus.Registry) (*metrics, error) {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem,
			Name: name, Help: help}, labels)
	}
	m := &metrics{
		collected: map[host.Resource]bool{},
		decisions: vec("decisions_total", "Requests by limit, outcome and source of the decision. outcome: "+
			"allowed (charged to this limit), denied (refused "+
			"by this limit), would_allow and would_deny (of a limit in the mode shadow), error_passed and "+
			"error_refused (no decision was possible, and the request passed or was refused), "+
			"overloaded (the database answers, and no decision came in time). "+
			"source: postgres, blocked (known to be used up), lease (units charged in advance), memory "+
			"(dsn memory) or none (no decision).",
			"prefix", "outcome", "source"),
		blocked: vec("blocked_total",
			"Requests of those denied that were refused without asking the database.", "prefix"),
		leased: vec("leased_total", "Requests of those allowed that passed without asking the database, "+
			"from units that were charged in advance.", "prefix"),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "decision_duration_seconds",
			Help:    "How long requests waited for their decision, or for the error that there is none.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1},
		}),
		settlements: vec("settlements_total", "Requests that were settled, by prefix of the limit and "+
			"outcome. outcome: more, less, same (than the request was charged), "+
			"missing (the response does not say what the request cost), invalid (it says what cannot be a "+
			"cost). After the last two, what was charged stays.", "prefix", "outcome"),
		policy: &policyCounters{
			requests: vec("policy_requests_total", "Requests by what the policy says: charged (to limits "+
				"of rules, which may refuse it), free (no rule matches), exempt, unknown_key, key_expired, "+
				"key_revoked, banned, blocked, no_quota, error_passed and error_refused (no decision was "+
				"possible), overloaded.", "outcome"),
			limits: vec("policy_decisions_total", "Requests by rule, limit, outcome and source of the "+
				"decision. outcome: allowed (charged to this limit), denied "+
				"(refused by this limit), overage (charged beyond the quota), would_allow and would_deny "+
				"(of a shadow rule), "+
				"error_passed and error_refused (no decision was possible), overloaded. "+
				"source: postgres, blocked (known to be used up), lease (units charged in advance) or none "+
				"(no decision).",
				"rule", "limit", "outcome", "source"),
		},
	}
	return m, errors.Join(registry.Register(m.decisions), registry.Register(m.blocked),
		registry.Register(m.leased), registry.Register(m.duration), registry.Register(m.settlements),
		registry.Register(m.policy.requests), registry.Register(m.policy.limits), registry.Register(state{m}))
}

// noSource is the source of requests without a decision.
const noSource = "none"

// counters are the counters of one limit.
type counters struct {
	allowed, denied           bySource
	errorPassed, errorRefused prometheus.Counter
	overloaded                prometheus.Counter
	blocked, leased           prometheus.Counter
	wouldAllow, wouldDeny     bySource // of a limit in the mode shadow
}

// bySource are the counters of one outcome, by the source of the decision.
type bySource struct {
	of       *prometheus.CounterVec                      // of a prefix and an outcome, with the label source
	expected [ratelimit.FromLease + 1]prometheus.Counter // by source; nil for a source that is not expected
}

// expect makes counters for the sources from which decisions can come. Their series begin at 0.
func expect(decisions *prometheus.CounterVec, prefix, outcome string, sources ...ratelimit.Source) bySource {
	c := bySource{of: decisions.MustCurryWith(prometheus.Labels{"prefix": prefix, "outcome": outcome})}
	for _, s := range sources {
		c.expected[s] = c.of.WithLabelValues(s.String())
	}
	return c
}

// inc counts a decision.
func (c *bySource) inc(s ratelimit.Source) {
	if counter := c.expected[s]; counter != nil {
		counter.Inc()
		return
	}
	c.of.WithLabelValues(s.String()).Inc()
}

// counters returns the counters of a limit.
func (m *metrics) counters(z *serve.Zone, inMemory bool) counters {
	prefix := z.Limit.Prefix
	if z.Settle != nil {
		for _, outcome := range serve.SettleOutcomes {
			m.settlements.WithLabelValues(prefix, string(outcome)) // a series begins at 0
		}
	}
	if z.Mode == settings.Shadow {
		return counters{wouldAllow: expect(m.decisions, prefix, "would_allow"), wouldDeny: expect(m.decisions,
			prefix, "would_deny")}
	}
	c := counters{
		errorPassed:  m.decisions.WithLabelValues(prefix, "error_passed", noSource),
		errorRefused: m.decisions.WithLabelValues(prefix, "error_refused", noSource),
		overloaded:   m.decisions.WithLabelValues(prefix, "overloaded", noSource),
		blocked:      m.blocked.WithLabelValues(prefix),
		leased:       m.leased.WithLabelValues(prefix),
	}
	if inMemory {
		c.allowed = expect(m.decisions, prefix, "allowed", ratelimit.FromMemory)
		c.denied = expect(m.decisions, prefix, "denied", ratelimit.FromMemory)
	} else {
		c.allowed = expect(m.decisions, prefix, "allowed", ratelimit.FromPostgres, ratelimit.FromLease)
		c.denied = expect(m.decisions, prefix, "denied", ratelimit.FromPostgres, ratelimit.FromBlocked)
	}
	return c
}
