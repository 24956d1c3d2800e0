package caddymodule

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what Caddy's /metrics tells of the limits. No key is ever a
// label: there may be millions of them.
type metrics struct {
	decisions *prometheus.CounterVec
	blocked   *prometheus.CounterVec
}

// newMetrics registers the metrics of a config, which has a registry of its own.
func newMetrics(registry *prometheus.Registry) (*metrics, error) {
	m := &metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pg_ratelimit_decisions_total",
			Help: "Requests by limit and outcome: allowed (charged to this limit), " +
				"denied (refused by this limit), error (no decision could be had).",
		}, []string{"prefix", "outcome"}),
		blocked: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pg_ratelimit_blocked_total",
			Help: "Requests of those denied that were refused without asking the database.",
		}, []string{"prefix"}),
	}
	return m, errors.Join(registry.Register(m.decisions), registry.Register(m.blocked))
}

// counters are one limit's, looked up once: a request only counts.
type counters struct {
	allowed, denied, failed, blocked prometheus.Counter
}

func (m *metrics) counters(prefix string) counters {
	return counters{
		allowed: m.decisions.WithLabelValues(prefix, "allowed"),
		denied:  m.decisions.WithLabelValues(prefix, "denied"),
		failed:  m.decisions.WithLabelValues(prefix, "error"),
		blocked: m.blocked.WithLabelValues(prefix),
	}
}
