package caddymodule

import (
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
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

	policy *policyCounters

	mu        sync.Mutex        // guards all that follows
	stores    []watchedStore    // that handlers use
	policies  []watchedPolicy   // that handlers use
	histories []*history.Writer // that handlers use
}

// newMetrics registers the metrics. Each config has its own registry.
func newMetrics(registry *prometheus.Registry) (*metrics, error) {
	m := &metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "decisions_total",
			Help: "Requests by limit, outcome and source of the decision. outcome: allowed (charged to this limit), denied (refused by this limit), " +
				"error_passed and error_refused (no decision was possible, and the request passed or was refused), paused (limits are paused). " +
				"source: postgres, blocked (known to be used up), lease (units charged in advance), memory (dsn memory) or none (no decision).",
		}, []string{"prefix", "outcome", "source"}),
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
	paused := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "paused",
		Help: "1 if the limits of a database are paused, else 0.",
	}, m.anyPaused)
	return m, errors.Join(registry.Register(m.decisions), registry.Register(m.blocked), registry.Register(m.leased), registry.Register(m.duration),
		registry.Register(up), registry.Register(paused), registry.Register(newStoreMetrics(m)), newPolicyMetrics(m, registry), newHistoryMetrics(m, registry))
}

// noSource is the source of requests without a decision.
const noSource = "none"

// counters are the counters of one limit.
type counters struct {
	allowed, denied           bySource
	errorPassed, errorRefused prometheus.Counter
	blocked, leased, paused   prometheus.Counter
}

// bySource are the counters of one outcome, by the source of the decision.
type bySource struct {
	of       *prometheus.CounterVec                      // of a prefix and an outcome, with the label source
	expected [ratelimit.FromLease + 1]prometheus.Counter // by source; nil for a source that is not expected
}

// expect makes counters for the sources of which decisions can come. Their series begin at 0.
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

// counters returns the counters of a limit on a store.
func (m *metrics) counters(prefix string, s *store) counters {
	c := counters{
		errorPassed:  m.decisions.WithLabelValues(prefix, "error_passed", noSource),
		errorRefused: m.decisions.WithLabelValues(prefix, "error_refused", noSource),
		paused:       m.decisions.WithLabelValues(prefix, "paused", noSource),
		blocked:      m.blocked.WithLabelValues(prefix),
		leased:       m.leased.WithLabelValues(prefix),
	}
	if s.db == nil {
		c.allowed = expect(m.decisions, prefix, "allowed", ratelimit.FromMemory)
		c.denied = expect(m.decisions, prefix, "denied", ratelimit.FromMemory)
	} else {
		c.allowed = expect(m.decisions, prefix, "allowed", ratelimit.FromPostgres, ratelimit.FromLease)
		c.denied = expect(m.decisions, prefix, "denied", ratelimit.FromPostgres, ratelimit.FromBlocked)
	}
	return c
}
