package page

import (
	"math"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/store/chain"
)

// namespace begins the names of the metrics. Those of Caddy itself begin with caddy_.
const namespace = "pg_ratelimit"

// scrapeTime is for how long proxies report after a scrape, so that counters are complete if scrapes come once a minute
// or more often.
const scrapeTime = 90 * time.Second

// serveMetrics serves the numbers of all proxies for Prometheus.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	c := s.collector
	c.refresh(r.Context(), false, scrapeTime)
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(numbers{c}); err != nil {
		failureOf(err).write(w)
		return
	}
	w.Header().Del("Cache-Control")
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// numbers are what the proxies have counted. docs/page.md lists the metrics.
type numbers struct{ of *collector }

// Describe implements prometheus.Collector. It names nothing: the registry checks what Collect sends.
func (numbers) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (n numbers) Collect(to chan<- prometheus.Metric) {
	c := n.of
	c.mu.Lock()
	defer c.mu.Unlock()
	send := func(kind prometheus.ValueType, name, help string, value float64, labels ...string) {
		names, values := []string{}, []string{}
		for i := 0; i < len(labels); i += 2 {
			names, values = append(names, labels[i]), append(values, labels[i+1])
		}
		to <- prometheus.MustNewConstMetric(prometheus.NewDesc(namespace+"_"+name, help, names, nil), kind, value, values...)
	}
	gauge := func(name, help string, value float64, labels ...string) {
		send(prometheus.GaugeValue, name, help, value, labels...)
	}
	counter := func(name, help string, value int64, labels ...string) {
		send(prometheus.CounterValue, name, help, float64(value), labels...)
	}
	gauge("database_up", "1 if the database answers the page, else 0.", oneIf(c.up))
	if !c.up {
		return
	}
	gauge("paused", "1 if all limits of the database are paused, else 0.", oneIf(c.pause != nil))
	for _, p := range c.proxies {
		node, version := p.Node.Node, ""
		if p.Version != nil {
			version = *p.Version
		}
		if !p.Elsewhere && p.Ended == nil {
			gauge("proxy_up", "1 if the proxy counts in the database now, 0 if it is gone or cannot decide.", oneIf(p.Live && p.Cannot == nil), "node", node, "version", version)
		}
		if p.Policy && p.Ended == nil {
			behind := -1.0
			if p.Behind != nil {
				behind = float64(*p.Behind)
			}
			gauge("proxy_changes_behind", "Changes of the policy that the proxy has yet to apply. -1: it is not known.", behind, "node", node)
		}
		if !p.reports() {
			continue
		}
		for prefix, counts := range p.now.Requests {
			for kind, count := range counts {
				counter("requests_total", "Requests by prefix of the limit and by what happened, as in the history. They need history, and are those since the proxy has started.",
					count, "node", node, "prefix", prefix, "decision", history.OutcomeKind(kind).String())
			}
		}
		for _, m := range storeCounts {
			send(m.kind, m.metric, m.help, float64(p.now.Counts[m.name]), "node", node)
		}
		for class, count := range p.now.Errors {
			counter("errors_total", "Errors of the database by class.", count, "node", node, "class", class)
		}
		gauge("local", "1 if the proxy limits by itself because the database makes no decisions (on_error local), else 0.", oneIf(p.now.LocalSince > 0), "node", node)
		to <- histogramOf(&p.now.Times, node)
	}
}

// storeCounts are the counts of stores in the reports of proxies, and the metrics of them.
var storeCounts = []struct {
	name, metric, help string
	kind               prometheus.ValueType
}{
	{"batches", "batches_total", "Batches of requests that the database was asked about.", prometheus.CounterValue},
	{"requests", "batched_requests_total", "Requests in these batches.", prometheus.CounterValue},
	{"failures", "failed_batches_total", "Batches for which no decision came.", prometheus.CounterValue},
	{"blocked", "blocked_total", "Requests that were refused without asking the database.", prometheus.CounterValue},
	{"leased", "leased_total", "Requests that passed without asking the database.", prometheus.CounterValue},
	{"blocked_keys", "blocked_keys", "Keys that are refused without asking the database.", prometheus.GaugeValue},
	{"leases", "leases", "Keys of which units are charged in advance.", prometheus.GaugeValue},
	{"leased_units", "leased_units", "Units that are charged in advance, and not used yet.", prometheus.GaugeValue},
	{"waiting", "waiting_requests", "Requests that wait for a decision.", prometheus.GaugeValue},
	{"in_flight", "in_flight", "What requests hold of limits of requests in flight.", prometheus.GaugeValue},
}

var proxyTimes = prometheus.NewDesc(namespace+"_batch_duration_seconds", "How long the database took for a batch, retries included.", []string{"node"}, nil)

// histogramOf has buckets from 128 µs to 8.4 s.
func histogramOf(h *chain.Histogram, node string) prometheus.Metric {
	const least, most, microsecond = 7, 23, 1e-6
	buckets := map[float64]uint64{}
	total := int64(0)
	for i, n := range h.Counts {
		total += n
		if i >= least && i <= most {
			buckets[math.Ldexp(1, i)*microsecond] = uint64(total)
		}
	}
	return prometheus.MustNewConstHistogram(proxyTimes, uint64(total), float64(h.Sum)*microsecond, buckets, node)
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
