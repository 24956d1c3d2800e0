package caddymodule

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

// newHistoryMetrics registers the metrics of histories. A history outlives a config, and its
// counters go on.
func newHistoryMetrics(m *metrics, registry *prometheus.Registry) error {
	dropped := func(kind string, of func(history.Stats) int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "history_dropped_total", ConstLabels: prometheus.Labels{"kind": kind},
			Help: "Decisions that could not be written to the history, because the database was slow or down for too long, by what lacks them: " +
				"audit (the audit log), metrics or usage.",
		}, func() float64 { return m.historySum(of) })
	}
	return errors.Join(
		registry.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "history_written_total",
			Help: "Decisions that were written to the audit log.",
		}, func() float64 { return m.historySum(func(s history.Stats) int64 { return s.Written }) })),
		registry.Register(dropped("audit", func(s history.Stats) int64 { return s.Dropped })),
		registry.Register(dropped("metrics", func(s history.Stats) int64 { return s.DroppedMetrics })),
		registry.Register(dropped("usage", func(s history.Stats) int64 { return s.DroppedUsage })),
		registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "history_pending",
			Help: "Decisions for the audit log that are not written yet.",
		}, func() float64 { return m.historySum(func(s history.Stats) int64 { return s.Pending }) })),
	)
}

// watchHistory adds a history to those of the metrics.
func (m *metrics) watchHistory(w *history.Writer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.histories = append(m.histories, w)
}

// historySum is the sum of all histories.
func (m *metrics) historySum(of func(history.Stats) int64) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := int64(0)
	for _, w := range m.histories {
		sum += of(w.Stats())
	}
	return float64(sum)
}
