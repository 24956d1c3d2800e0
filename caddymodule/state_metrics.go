package caddymodule

import (
	"math"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
)

// baseline holds the figures of a resource at the time at which this config began to use the resource.
// Collect subtracts them, so that the counters of a config start at 0 even if an earlier config opened the
// resource. The counters of a history continue across configs.
type baseline struct {
	since   time.Time
	stats   engine.Stats // the figures of a store on Postgres
	lookups int64        // the lookups of a policy
}

// watch adds a resource to the metrics, unless it has been added.
func (m *metrics) watch(r host.Resource) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.watched[r]; ok {
		return
	}
	before := baseline{since: time.Now()}
	switch r := r.(type) {
	case *host.Database:
		if r.Postgres != nil {
			before.stats = r.Postgres.Stats()
		}
	case *policy.Policy:
		before.lookups = r.Stats().Lookups
	}
	m.watched[r] = before
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, to) }

// Collect implements prometheus.Collector. It collects the figures of a config's stores, policies and
// histories when Prometheus reads the metrics, so that requests do not spend time on them. It always sends
// the same metrics, even without a store, a policy or a history. It adds up the figures, except that it takes
// the maximum of a policy's gauges.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := engine.NewStats()
	up, local := 1, 0
	var rules policy.Stats
	var age time.Duration
	var recorded history.Stats
	for r, before := range m.watched {
		switch r := r.(type) {
		case *host.Database:
			if r.Postgres == nil { // a store in memory has no figures
				continue
			}
			now := r.Postgres.Stats()
			now.Subtract(before.stats)
			sum.Add(now)
			if r.Postgres.Unavailable() != nil {
				up = 0
			}
			if r.Postgres.Local().On {
				local = 1
			}
		case *policy.Policy:
			now := r.Stats()
			rules.Rules = max(rules.Rules, now.Rules)
			rules.Unusable = max(rules.Unusable, now.Unusable)
			rules.Identities = max(rules.Identities, now.Identities)
			rules.Applied = max(rules.Applied, now.Applied)
			rules.Lookups += now.Lookups - before.lookups
			if now.Polled.IsZero() {
				now.Polled = before.since
			}
			age = max(age, time.Since(now.Polled))
		case *history.Writer:
			now := r.Stats()
			recorded.Written += now.Written
			recorded.Pending += now.Pending
			recorded.Dropped += now.Dropped
			recorded.DroppedMetrics += now.DroppedMetrics
		}
	}
	send(to, "database_up", "1 if all databases answer requests.", up)
	send(to, "local", "1 while this Caddy limits by itself.", local)
	sendStats(to, sum)
	send(to, "policy_rules", "Rules that have an effect.", rules.Rules)
	send(to, "policy_wrong_rules", "Unusable rules and overrides.", rules.Unusable)
	send(to, "policy_identities", "Remembered API keys and users.", rules.Identities)
	send(to, "policy_lookups_total", "Statements that looked up API keys and users.", rules.Lookups)
	send(to, "policy_version", "The last change that has taken effect.", rules.Applied)
	send(to, "policy_age_seconds", "The time since the database last answered about changes.", age.Seconds())
	const dropped = "Decisions that the history lacks, by its part: audit or metrics."
	send(to, "history_written_total", "Decisions written to the audit log.", recorded.Written)
	send(to, "history_dropped_total", dropped, recorded.Dropped, "kind", "audit")
	send(to, "history_dropped_total", dropped, recorded.DroppedMetrics, "kind", "metrics")
	send(to, "history_pending", "Decisions not written to the audit log yet.", recorded.Pending)
}

// sendStats sends the figures of the stores on Postgres.
func sendStats(to chan<- prometheus.Metric, sum engine.Stats) {
	send(to, "batches_total", "Batches of requests sent to the databases.", sum[engine.Batches])
	send(to, "batched_requests_total", "Requests in these batches.", sum[engine.Requests])
	send(to, "statements_total", "Statements of these batches, with retries.", sum[engine.Statements])
	send(to, "rolled_back_total", "Transactions undone because a limit refused.", sum[engine.RolledBack])
	send(to, "failed_batches_total", "Batches for which no decision came.", sum[engine.Failures])
	send(to, "settlements_lost_total", "Settlements that may not have arrived.", sum[engine.Unsettled])
	send(to, "lost_units_total", "At most the units that killed proxies held, reported by this one.",
		sum[engine.LostUnits])
	for class, n := range sum.ErrorsByClass() {
		send(to, "errors_total", "Errors of the databases by class.", n, "class", class)
	}
	// Batches have from 1 to 1<<12 requests, and wait or take from 1<<7 µs (128 µs) to 1<<23 µs (8.4 s).
	const microsecond = 1e-6
	histogram(to, "batch_size", sum[engine.Sizes:], 0, 12, 1, "Requests in a batch.")
	histogram(to, "batch_wait_seconds", sum[engine.Waits:], 7, 23, microsecond,
		"How long the first request of a batch waited.")
	histogram(to, "batch_duration_seconds", sum[engine.Times:], 7, 23, microsecond,
		"How long the databases took for a batch, with retries.")
	send(to, "remembered_refusals", "Refusals that are remembered.", sum[engine.RememberedRefusals])
	send(to, "leased_units", "Units charged in advance and not used yet.", sum[engine.LeasedUnits])
}

// send sends a metric, which is a counter if its name ends in _total. label has the name and the value of a
// label, or nothing.
func send[N int | int64 | float64](to chan<- prometheus.Metric, name, help string, value N, label ...string) {
	kind := prometheus.GaugeValue
	if strings.HasSuffix(name, "_total") {
		kind = prometheus.CounterValue
	}
	to <- prometheus.MustNewConstMetric(describe(name, help, label...), kind, float64(value))
}

// describe returns the description of a metric; see send.
func describe(name, help string, label ...string) *prometheus.Desc {
	labels := prometheus.Labels{}
	if len(label) > 0 {
		labels[label[0]] = label[1]
	}
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, nil, labels)
}

// histogram sends the histogram at the start of stats, with the buckets from 1<<first to 1<<last units.
func histogram(
	to chan<- prometheus.Metric, name string, stats engine.Stats, first, last int, unit float64, help string,
) {
	buckets := make(map[float64]uint64, last-first+1)
	total := int64(0)
	for i, n := range stats[:engine.HistogramSize-1] {
		total += n
		if i >= first && i <= last {
			buckets[math.Ldexp(1, i)*unit] = uint64(total)
		}
	}
	sum := float64(stats[engine.HistogramSize-1]) * unit
	to <- prometheus.MustNewConstHistogram(describe(name, help), uint64(total), sum, buckets)
}
