package caddymodule

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	counts "github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
)

// state collects the figures of a config's stores, policies and histories when Prometheus reads the metrics,
// so they take no time of requests.
type state struct{ of *metrics }

// Describe implements prometheus.Collector.
func (s state) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, to) }

// Collect implements prometheus.Collector. It always sends the same metrics, even without a store, a policy
// or a history.
func (s state) Collect(to chan<- prometheus.Metric) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	collectStores(to, s.of.stores)
	collectPolicies(to, s.of.policies)
	collectHistories(to, s.of.histories)
}

// watch adds a resource to the metrics, unless it has been added. A store in memory has no figures.
func (m *metrics) watch(r host.Resource) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.collected[r] {
		return
	}
	m.collected[r] = true
	switch r := r.(type) {
	case *host.Database:
		if s := r.Postgres; s != nil {
			m.stores = append(m.stores, collectedStore{s, s.Stats()})
		}
	case *policy.Policy:
		m.policies = append(m.policies, collectedPolicy{r, time.Now(), r.Stats().LookUps})
	case *history.Writer:
		m.histories = append(m.histories, r)
	}
}

// describe returns the description of a metric with constant labels.
func describe(name, help string, labels prometheus.Labels) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, nil, labels)
}

func counter(to chan<- prometheus.Metric, name string, value int64, help string, labels prometheus.Labels) {
	to <- prometheus.MustNewConstMetric(describe(name, help, labels), prometheus.CounterValue, float64(value))
}

func gauge(to chan<- prometheus.Metric, name string, value float64, help string) {
	to <- prometheus.MustNewConstMetric(describe(name, help, nil), prometheus.GaugeValue, value)
}

// collectedStore is a store on Postgres, with its figures when this config began to use it. The counters of a
// config start at 0, and a store can outlive the config that opened it.
type collectedStore struct {
	*counts.Store
	before engine.Stats
}

// collectStores sends the sums of the stores' figures since this config began to use them.
func collectStores(to chan<- prometheus.Metric, stores []collectedStore) {
	sum := engine.NewStats()
	up, local := 1.0, 0.0
	for _, s := range stores {
		now := s.Stats()
		now.Subtract(s.before)
		sum.Add(now)
		if s.Unavailable() != nil {
			up = 0
		}
		if s.Local().On {
			local = 1
		}
	}
	gauge(to, "database_up", up, "1 if all databases answer requests.")
	gauge(to, "local", local, "1 while this Caddy limits by itself.")
	counter(to, "batches_total", sum[engine.Batches], "Batches of requests sent to the databases.", nil)
	counter(to, "batched_requests_total", sum[engine.Requests], "Requests in these batches.", nil)
	counter(to, "statements_total", sum[engine.Statements], "Statements of these batches, with retries.", nil)
	counter(to, "rolled_back_total", sum[engine.RolledBack],
		"Transactions undone because a limit refused.", nil)
	counter(to, "failed_batches_total", sum[engine.Failures], "Batches for which no decision came.", nil)
	counter(to, "settlements_lost_total", sum[engine.Unsettled],
		"Settlements that may not have arrived.", nil)
	for class, n := range sum.ErrorsByClass() {
		counter(to, "errors_total", n, "Errors of the databases by class.",
			prometheus.Labels{"class": class})
	}
	// Batches have from 1 to 1<<12 requests, and wait or take from 1<<7 µs (128 µs) to 1<<23 µs (8.4 s).
	const microsecond = 1e-6
	histogram(to, "batch_size", sum[engine.Sizes:], 0, 12, 1, "Requests in a batch.")
	histogram(to, "batch_wait_seconds", sum[engine.Waits:], 7, 23, microsecond,
		"How long the first request of a batch waited.")
	histogram(to, "batch_duration_seconds", sum[engine.Times:], 7, 23, microsecond,
		"How long the databases took for a batch, with retries.")
	gauge(to, "blocked_keys", float64(sum[engine.BlockedKeys]), "Keys refused from memory.")
	gauge(to, "leased_units", float64(sum[engine.LeasedUnits]), "Units charged in advance and not used yet.")
}

// histogram sends the histogram at the begin of stats, with the buckets from 1<<least to 1<<most units.
func histogram(to chan<- prometheus.Metric, name string, stats engine.Stats, least, most int, unit float64,
	help string) {
	buckets := make(map[float64]uint64, most-least+1)
	total := int64(0)
	for i, n := range stats[:engine.HistogramSize-1] {
		total += n
		if i >= least && i <= most {
			buckets[math.Ldexp(1, i)*unit] = uint64(total)
		}
	}
	sum := float64(stats[engine.HistogramSize-1]) * unit
	to <- prometheus.MustNewConstHistogram(describe(name, help, nil), uint64(total), sum, buckets)
}

// collectedPolicy is a policy, with the time when this config began to use it and the statements that it had
// sent until then. The counters of a config start at 0, and a policy can outlive the config that opened it.
type collectedPolicy struct {
	*policy.Policy
	since   time.Time
	lookUps int64
}

// collectPolicies sends the sum of the policies' statements, and the maximum of each other figure.
func collectPolicies(to chan<- prometheus.Metric, policies []collectedPolicy) {
	var most policy.Stats
	age := time.Duration(0)
	for _, p := range policies {
		s := p.Stats()
		most.Rules = max(most.Rules, s.Rules)
		most.Wrong = max(most.Wrong, s.Wrong)
		most.Identities = max(most.Identities, s.Identities)
		most.Applied = max(most.Applied, s.Applied)
		most.LookUps += s.LookUps - p.lookUps
		if s.Polled.IsZero() {
			s.Polled = p.since
		}
		age = max(age, time.Since(s.Polled))
	}
	gauge(to, "policy_rules", float64(most.Rules), "Rules that have an effect.")
	gauge(to, "policy_wrong_rules", float64(most.Wrong), "Unusable rules and overrides.")
	gauge(to, "policy_identities", float64(most.Identities), "Remembered API keys and users.")
	counter(to, "policy_lookups_total", most.LookUps, "Statements that looked up API keys and users.", nil)
	gauge(to, "policy_version", float64(most.Applied), "The last change that has taken effect.")
	gauge(to, "policy_age_seconds", age.Seconds(), "The time since the database last answered about changes.")
}

// collectHistories sends the sums of the histories' figures, which continue across configs.
func collectHistories(to chan<- prometheus.Metric, histories []*history.Writer) {
	var sum history.Stats
	for _, w := range histories {
		s := w.Stats()
		sum.Written += s.Written
		sum.Pending += s.Pending
		sum.Dropped += s.Dropped
		sum.DroppedMetrics += s.DroppedMetrics
	}
	const dropped = "Decisions that the history lacks, by its part: audit or metrics."
	counter(to, "history_written_total", sum.Written, "Decisions written to the audit log.", nil)
	counter(to, "history_dropped_total", sum.Dropped, dropped, prometheus.Labels{"kind": "audit"})
	counter(to, "history_dropped_total", sum.DroppedMetrics, dropped, prometheus.Labels{"kind": "metrics"})
	gauge(to, "history_pending", float64(sum.Pending), "Decisions not written to the audit log yet.")
}
