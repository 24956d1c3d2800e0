package caddymodule

import (
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// The name of each metric starts with namespace and subsystem.
const namespace, subsystem = "caddy", "pg_ratelimit"

// metrics holds the module's metrics. No label has a key, a user or a path, since there may be millions of
// them and they may be secret. docs/generated/metrics.md lists all metrics and labels.
type metrics struct {
	decisions, overage, policyRequests, settlements, tokens, money *prometheus.CounterVec

	duration prometheus.Histogram

	mu      sync.Mutex // guards watched
	watched map[host.Resource]baseline
}

// newMetrics registers the metrics in the registry of a config.
func newMetrics(registry *prometheus.Registry) (*metrics, error) {
	var failures error
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem,
			Name: name, Help: help}, labels)
		failures = errors.Join(failures, registry.Register(v))
		return v
	}
	m := &metrics{
		watched: map[host.Resource]baseline{},
		decisions: vec("decisions_total", "Requests by limit, outcome, and source of the decision.",
			"prefix", "outcome", "passed", "shadow", "source"),
		overage: vec("overage_total", "Requests that a limit charged beyond its quota.", "prefix"),
		policyRequests: vec("policy_requests_total", "Requests by what the policy says.", "outcome",
			"reason", "passed"),
		settlements: vec("settlements_total", "Requests that were settled: they cost more, less or the "+
			"same, or the cost was missing or invalid.", "prefix", "cost"),
		tokens: vec("tokens_total", "Tokens that responses have reported under limits of tokens or money, "+
			"by the model of the price, which is empty without one.", "model", "kind"),
		money: vec("money_total", "What the tokens have cost, in the currency of the prices.", "model"),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "decision_duration_seconds",
			Help:    "How long requests waited for their decision, or for the error that there is none.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1},
		}),
	}
	m.countUsage(&serve.Usage{Tokens: map[string]int64{serve.TokenKinds[0]: 0}})
	return m, errors.Join(failures, registry.Register(m.duration), registry.Register(m))
}

// countUsage counts the usage that a response has reported.
func (m *metrics) countUsage(u *serve.Usage) {
	for kind, n := range u.Tokens {
		m.tokens.WithLabelValues(u.Model, kind).Add(float64(n))
	}
	m.money.WithLabelValues(u.Model).Add(float64(u.Money) / 1e9)
}

// initSeries creates the series of a limit, so that they start at 0.
func (m *metrics) initSeries(z *serve.Zone, inMemory bool) {
	prefix := z.Limit.Prefix
	if z.CostSource != nil {
		for _, cost := range serve.SettledCosts {
			m.settlements.WithLabelValues(prefix, string(cost))
		}
	}
	if z.Mode == option.Shadow {
		return
	}
	series := [][]string{{"admitted", "true", "postgres"}, {"admitted", "true", "lease"},
		{"limited", "false", "postgres"}, {"limited", "false", "remembered"}}
	if inMemory {
		series = [][]string{{"admitted", "true", "memory"}, {"limited", "false", "memory"}}
	}
	for _, s := range append(series, []string{"overloaded", "false", noSource},
		[]string{"failed", "false", noSource}, []string{"failed", "true", noSource}) {
		m.decisions.WithLabelValues(prefix, s[0], s[1], "false", s[2])
	}
}

// noSource is the source of requests without a decision.
const noSource = "none"
