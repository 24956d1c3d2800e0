package caddymodule

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgratelimit/pg-ratelimit/internal/core/hooks"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// storeMetrics are what the Postgres stores count, added up over the stores of a config. They
// cost a request nothing: a store counts once for each batch, and they are computed when they
// are read.
type storeMetrics struct {
	of *metrics

	batches, requests, statements, rolledBack, failed *prometheus.Desc
	sizes, waits, times                               *prometheus.Desc
	errors, blockedKeys, leasedUnits                  *prometheus.Desc
}

// The buckets of the histograms, as powers of two: batches have from 1 to 4096 requests, and
// wait or take from 128 µs to 8.4 s.
const (
	leastSize, mostSize = 0, 12
	leastTime, mostTime = 7, 23
)

func newStoreMetrics(m *metrics) *storeMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, labels, nil)
	}
	return &storeMetrics{
		of:         m,
		batches:    desc("batches_total", "Batches of requests that the databases were asked about."),
		requests:   desc("batched_requests_total", "Requests in these batches."),
		statements: desc("statements_total", "Statements that these batches sent, retries included."),
		rolledBack: desc("rolled_back_total", "Transactions that were undone because a request with several limits did not fit."),
		failed:     desc("failed_batches_total", "Batches for which no decision came."),
		sizes:      desc("batch_size", "How many requests a batch has."),
		waits:      desc("batch_wait_seconds", "How long the first request of a batch waited until the batch was sent."),
		times:      desc("batch_duration_seconds", "How long the databases took for a batch, retries included."),
		errors: desc("errors_total", "Errors of the databases by the class of their SQLSTATE: its first two characters, timeout (no answer in time), "+
			"connection (a connection failed without an SQLSTATE) or other.", "class"),
		blockedKeys: desc("blocked_keys", "Keys that are known to be used up, and are refused without asking the database."),
		leasedUnits: desc("leased_units", "Units of all limits that are charged in advance now, and not used yet."),
	}
}

// Describe implements prometheus.Collector.
func (s *storeMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		s.batches, s.requests, s.statements, s.rolledBack, s.failed, s.sizes, s.waits, s.times, s.errors, s.blockedKeys, s.leasedUnits,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s *storeMetrics) Collect(to chan<- prometheus.Metric) {
	sum, batches := s.of.storeStats()
	counter := func(d *prometheus.Desc, value int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	counter(s.batches, sum.Batches)
	counter(s.requests, sum.Requests)
	counter(s.statements, sum.Statements)
	counter(s.rolledBack, sum.RolledBack)
	counter(s.failed, sum.Failures)
	for _, class := range sqlstate.Classes {
		counter(s.errors, sum.Errors[class], class)
	}
	to <- histogram(s.sizes, batches.Sizes, leastSize, mostSize, 1)
	to <- histogram(s.waits, batches.Waits, leastTime, mostTime, time.Microsecond.Seconds())
	to <- histogram(s.times, batches.Times, leastTime, mostTime, time.Microsecond.Seconds())
	to <- prometheus.MustNewConstMetric(s.blockedKeys, prometheus.GaugeValue, float64(sum.BlockedKeys))
	to <- prometheus.MustNewConstMetric(s.leasedUnits, prometheus.GaugeValue, float64(sum.LeasedUnits))
}

// histogram is a Prometheus histogram with the buckets from 1<<least to 1<<most units.
func histogram(d *prometheus.Desc, h hooks.Histogram, least, most int, unit float64) prometheus.Metric {
	buckets := make(map[float64]uint64, most-least+1)
	total := int64(0)
	for i, n := range h.Counts {
		total += n
		if i >= least && i <= most {
			buckets[math.Ldexp(1, i)*unit] = uint64(total)
		}
	}
	return prometheus.MustNewConstHistogram(d, uint64(total), float64(h.Sum)*unit, buckets)
}

// watchedStore is a store, and what it had counted when this config began to use it. A store can
// outlive the config that opened it, and the counters of a config start at 0.
type watchedStore struct {
	*store
	before        postgres.Stats
	batchesBefore hooks.Batches
}

// watch adds a store to those of the metrics.
func (m *metrics) watch(s *store) {
	watched := watchedStore{s, edge.Stats(s.Store), hooks.BatchesOf(s.Store)}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stores = append(m.stores, watched)
}

// storeStats adds up what the stores have counted for this config.
func (m *metrics) storeStats() (postgres.Stats, hooks.Batches) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum, batches := postgres.Stats{Errors: map[string]int64{}}, hooks.Batches{}
	for _, s := range m.stores {
		addStats(&sum, edge.Stats(s.Store), 1)
		before := s.before
		before.BlockedKeys, before.LeasedUnits = 0, 0 // they are no counters
		addStats(&sum, before, -1)
		addBatches(&batches, hooks.BatchesOf(s.Store), 1)
		addBatches(&batches, s.batchesBefore, -1)
	}
	return sum, batches
}

// addStats adds some stats, times sign.
func addStats(sum *postgres.Stats, s postgres.Stats, sign int64) {
	sum.Requests += sign * s.Requests
	sum.Batches += sign * s.Batches
	sum.Statements += sign * s.Statements
	sum.RolledBack += sign * s.RolledBack
	sum.Failures += sign * s.Failures
	sum.BlockedKeys += sign * s.BlockedKeys
	sum.LeasedUnits += sign * s.LeasedUnits
	for class, n := range s.Errors {
		sum.Errors[class] += sign * n
	}
}

// addBatches adds some histograms, times sign.
func addBatches(sum *hooks.Batches, b hooks.Batches, sign int64) {
	addHistogram(&sum.Sizes, b.Sizes, sign)
	addHistogram(&sum.Waits, b.Waits, sign)
	addHistogram(&sum.Times, b.Times, sign)
}

func addHistogram(sum *hooks.Histogram, h hooks.Histogram, sign int64) {
	for len(sum.Counts) < len(h.Counts) {
		sum.Counts = append(sum.Counts, 0)
	}
	for i, n := range h.Counts {
		sum.Counts[i] += sign * n
	}
	sum.Sum += sign * h.Sum
}

func (m *metrics) anyPaused() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.stores {
		if edge.Paused(s.Store) {
			return 1
		}
	}
	return 0
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
