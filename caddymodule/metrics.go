package caddymodule

import (
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgratelimit/pg-ratelimit/internal/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/history"
)

// metrics are the metrics of the limits among Caddy's. Keys are not labels: there may be
// millions of them.
type metrics struct {
	decisions *prometheus.CounterVec
	blocked   *prometheus.CounterVec
	leased    *prometheus.CounterVec
	duration  prometheus.Histogram

	policy *policyCounters

	mu        sync.Mutex        // guards all that follows
	stores    []*store          // that handlers use
	policies  []*edge.Policy    // that handlers use
	histories []*history.Writer // that handlers use
}

// newMetrics registers the metrics. Each config has its own registry.
func newMetrics(registry *prometheus.Registry) (*metrics, error) {
	const namespace, subsystem = "caddy", "pg_ratelimit"
	m := &metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "decisions_total",
			Help: "Requests by limit and outcome: allowed (charged to this limit), denied (refused by this limit), " +
				"error_passed and error_refused (no decision was possible, and the request passed or was refused).",
		}, []string{"prefix", "outcome"}),
		blocked: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "blocked_total",
			Help: "Requests of those denied that were refused without asking the database.",
		}, []string{"prefix"}),
		leased: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "leased_total",
			Help: "Requests of those allowed that passed without asking the database, from units that were charged in advance.",
		}, []string{"prefix"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "decision_duration_seconds",
			Help:    "How long requests waited for their decision, or for the error that there is none.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1},
		}),
	}
	up := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "database_up",
		Help: "1 if the databases of all limits answer, 0 if one does not.",
	}, m.databaseUp)
	units := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "leased_units",
		Help: "Units of all limits that are charged in advance now, and not used yet.",
	}, m.leasedUnits)
	return m, errors.Join(registry.Register(m.decisions), registry.Register(m.blocked), registry.Register(m.leased), registry.Register(m.duration),
		registry.Register(up), registry.Register(units), newPolicyMetrics(m, registry), newHistoryMetrics(m, registry))
}

// watch adds a store to those that databaseUp and leasedUnits ask.
func (m *metrics) watch(s *store) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stores = append(m.stores, s)
}

func (m *metrics) databaseUp() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.stores {
		if !edge.Answers(s.Store) {
			return 0
		}
	}
	return 1
}

func (m *metrics) leasedUnits() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	units := int64(0)
	for _, s := range m.stores {
		units += edge.LeasedUnits(s.Store)
	}
	return float64(units)
}

// counters are the counters of one limit.
type counters struct {
	allowed, denied, errorPassed, errorRefused, blocked, leased prometheus.Counter
}

func (m *metrics) counters(prefix string) counters {
	return counters{
		allowed:      m.decisions.WithLabelValues(prefix, "allowed"),
		denied:       m.decisions.WithLabelValues(prefix, "denied"),
		errorPassed:  m.decisions.WithLabelValues(prefix, "error_passed"),
		errorRefused: m.decisions.WithLabelValues(prefix, "error_refused"),
		blocked:      m.blocked.WithLabelValues(prefix),
		leased:       m.leased.WithLabelValues(prefix),
	}
}
