package page

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// namespace begins the names of the metrics. Those of Caddy itself begin with caddy_.
const namespace = "pg_ratelimit"

// serveMetrics serves the numbers of all proxies for Prometheus.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	c := s.collector
	c.refresh(r.Context(), false)
	_ = s.ask(r.Context(), ofHistory, s.requests.read) // after a failure the sums stay as they were
	registry := prometheus.NewPedanticRegistry()
	if err := errors.Join(registry.Register(numbers{c}), registry.Register(&s.requests)); err != nil {
		failureOf(err).write(w)
		return
	}
	w.Header().Del("Cache-Control")
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// numbers are the states of the database and the proxies. docs/page.md lists the metrics.
type numbers struct{ of *collector }

// Describe implements prometheus.Collector. It names nothing: the registry checks what Collect sends.
func (numbers) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (n numbers) Collect(to chan<- prometheus.Metric) {
	c := n.of
	c.mu.Lock()
	defer c.mu.Unlock()
	gauge := func(name, help string, value float64, labels ...string) {
		names, values := []string{}, []string{}
		for i := 0; i < len(labels); i += 2 {
			names, values = append(names, labels[i]), append(values, labels[i+1])
		}
		desc := prometheus.NewDesc(namespace+"_"+name, help, names, nil)
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, values...)
	}
	gauge("database_up", "1 if the database answers the page, else 0.", oneIf(c.up))
	if !c.up {
		return
	}
	for i := range c.proxies {
		p := &c.proxies[i]
		node, version := p.Node, ""
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
	}
}

// requestSums are the requests of the minutes since the server of the page began, by prefix and decision. A proxy may
// write a minute late.
type requestSums struct {
	mu    sync.Mutex // guards what follows
	since time.Time  // the first minute that is read again
	past  map[[2]string]int64
	last  map[[2]string]int64 // of the minutes from since on
}

// lateTime is how late a proxy may write a minute.
const lateTime = 15 * time.Minute

// read reads the minutes that may have changed.
func (s *requestSums) read(ctx context.Context, db *admin.Database) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := db.Now(ctx)
	if err != nil {
		return err
	}
	if s.since.IsZero() {
		s.since = now.Truncate(time.Minute)
	}
	until := now.Add(-lateTime).Truncate(time.Minute)
	rows, err := db.Ask(ctx, `SELECT prefix, decision, time < $2::timestamptz AS past, sum(n)::bigint AS n
FROM rate_limit_metrics, LATERAL (VALUES ('allowed', allowed), ('limited', limited), ('blocked', blocked), ('rejected', rejected),
	('error', errors), ('shadow', shadow)) AS d(decision, n)
WHERE granularity = 'minute' AND time >= $1::timestamptz GROUP BY 1, 2, 3`, s.since, until)
	if err != nil {
		return err
	}
	s.last = map[[2]string]int64{}
	for i := range rows {
		sums := s.last
		if rows[i].Get("past") == true {
			sums = s.past
		}
		sums[[2]string{rows[i].Text("prefix"), rows[i].Text("decision")}] += rows[i].Get("n").(int64)
	}
	if until.After(s.since) {
		s.since = until
	}
	return nil
}

// Describe implements prometheus.Collector, as numbers does.
func (s *requestSums) Describe(chan<- *prometheus.Desc) {}

var requestsDesc = prometheus.NewDesc(namespace+"_requests_total",
	"Requests by prefix of the limit and by what happened, as in the history. They are those since this page's server has started.",
	[]string{"prefix", "decision"}, nil)

// Collect implements prometheus.Collector.
func (s *requestSums) Collect(to chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sums := maps.Clone(s.past)
	for labels, n := range s.last {
		sums[labels] += n
	}
	for labels, n := range sums {
		to <- prometheus.MustNewConstMetric(requestsDesc, prometheus.CounterValue, float64(n), labels[0], labels[1])
	}
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
