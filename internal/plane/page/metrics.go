package page

import (
	"math"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

// namespace begins the names of the metrics. Those of Caddy itself begin with caddy_.
const namespace = "pg_ratelimit"

// scrapeTime is for how long the collector goes on after a scrape, so that counters are complete if scrapes come
// once a minute or more often.
const scrapeTime = 90 * time.Second

// serveMetrics serves the numbers of all proxies for Prometheus.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	c := s.collector
	release := c.use()
	defer func() {
		release()
		c.mu.Lock()
		c.until = time.Now().Add(scrapeTime)
		c.mu.Unlock()
	}()
	_, _ = s.state(r, "proxies") // database_up says that it does not answer
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(numbers{c}); err != nil {
		failureOf(err).write(w)
		return
	}
	w.Header().Del("Cache-Control")
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// numbers are what the proxies have counted.
type numbers struct{ of *collector }

func metric(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

// The metrics. docs/metrics.md lists them.
var (
	databaseUp   = metric("database_up", "1 if the database answers the page, else 0.")
	limitsPaused = metric("paused", "1 if all limits of the database are paused, else 0.")
	proxyUp      = metric("proxy_up", "1 if the proxy counts in the database now, 0 if it is gone.", "node", "version")
	proxyBehind  = metric("proxy_changes_behind", "Changes of the policy that the proxy has yet to apply. -1: it is not known.", "node")
	proxyRequest = metric("requests_total", "Requests by prefix of the limit and by what happened, as in the history. They need history, and are those since the proxy has started.", "node", "prefix", "decision")
	proxyBatches = metric("batches_total", "Batches of requests that the database was asked about.", "node")
	proxyBatched = metric("batched_requests_total", "Requests in these batches.", "node")
	proxyFailed  = metric("failed_batches_total", "Batches for which no decision came.", "node")
	proxyErrors  = metric("errors_total", "Errors of the database by class.", "node", "class")
	proxyBlocked = metric("blocked_total", "Requests that were refused without asking the database.", "node")
	proxyLeased  = metric("leased_total", "Requests that passed without asking the database.", "node")
	proxyKeys    = metric("blocked_keys", "Keys that are known to be used up.", "node")
	proxyLeases  = metric("leases", "Keys of which the proxy holds units that are charged in advance.", "node")
	proxyUnits   = metric("leased_units", "Units that are charged in advance, and not used yet.", "node")
	proxyWaiting = metric("waiting_requests", "Requests that wait for a decision.", "node")
	proxyFlights = metric("in_flight", "What requests hold of limits of requests in flight.", "node")
	proxyIsLocal = metric("local", "1 if the proxy limits by itself because the database makes no decisions (on_error local), else 0.", "node")
	proxyTimes   = metric("batch_duration_seconds", "How long the database took for a batch, retries included.", "node")
)

// Describe implements prometheus.Collector.
func (n numbers) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{databaseUp, limitsPaused, proxyUp, proxyBehind, proxyRequest, proxyBatches, proxyBatched, proxyFailed, proxyErrors, proxyBlocked, proxyLeased,
		proxyKeys, proxyLeases, proxyUnits, proxyWaiting, proxyFlights, proxyIsLocal, proxyTimes} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (n numbers) Collect(to chan<- prometheus.Metric) {
	c := n.of
	c.mu.Lock()
	defer c.mu.Unlock()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	counter := func(d *prometheus.Desc, value int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	gauge(databaseUp, oneIf(c.up))
	if !c.up {
		return
	}
	gauge(limitsPaused, oneIf(c.pause != nil))
	for _, p := range c.proxies {
		node, version := p.Node.Node, ""
		if p.Version != nil {
			version = *p.Version
		}
		if !p.Elsewhere {
			gauge(proxyUp, oneIf(p.Live), node, version)
		}
		if p.Policy {
			behind := -1.0
			if p.Behind != nil {
				behind = float64(*p.Behind)
			}
			gauge(proxyBehind, behind, node)
		}
		if p.now == nil || !p.Live {
			continue
		}
		for prefix, counts := range p.now.Counts {
			for kind, count := range counts {
				counter(proxyRequest, count, node, prefix, history.OutcomeKind(kind).String())
			}
		}
		sum := p.now.stores()
		counter(proxyBatches, sum.Batches, node)
		counter(proxyBatched, sum.Requests, node)
		counter(proxyFailed, sum.Failures, node)
		counter(proxyBlocked, sum.Blocked, node)
		counter(proxyLeased, sum.Leased, node)
		for class, count := range sum.Errors {
			counter(proxyErrors, count, node, class)
		}
		gauge(proxyKeys, float64(sum.BlockedKeys), node)
		gauge(proxyLeases, float64(sum.Leases), node)
		gauge(proxyUnits, float64(sum.LeasedUnits), node)
		gauge(proxyWaiting, float64(sum.Waiting), node)
		gauge(proxyFlights, float64(sum.InFlight), node)
		gauge(proxyIsLocal, oneIf(sum.LocalSince > 0), node)
		to <- histogramOf(&sum.Times, node)
	}
}

// histogramOf has buckets from 128 µs to 8.4 s.
func histogramOf(h *shownHistogram, node string) prometheus.Metric {
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
