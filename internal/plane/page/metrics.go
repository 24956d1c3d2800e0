package page

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// namespace begins the names of the metrics. Those of Caddy itself begin with caddy_.
const namespace = "pg_ratelimit"

// serveMetrics serves the numbers of all proxies for Prometheus.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	n := new(numbers)
	n.proxies, n.up = s.proxies(r.Context(), ofCounters)
	n.obeying = n.proxies
	if s.pools.dsns[ofPolicy] != s.pools.dsns[ofCounters] {
		n.obeying, _ = s.proxies(r.Context(), ofPolicy)
	}
	// after a failure the sums stay as they were
	_ = s.pools.read(r.Context(), ofHistory, askTimeout, s.requests.read)
	registry := prometheus.NewPedanticRegistry()
	if err := errors.Join(registry.Register(n), registry.Register(&s.requests)); err != nil {
		failureOf(err).write(w)
		return
	}
	w.Header().Del("Cache-Control")
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// proxy is a proxy that runs, or has vanished.
type proxy struct {
	Node    string
	Version *string
	Up      bool
	Policy  bool
	Behind  *int64
}

// proxies reads the registry of a database, and reports whether it answers.
func (s *Server) proxies(ctx context.Context, of dataset) (found []proxy, up bool) {
	err := s.pools.read(ctx, of, answerTimeout, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT node, version, live AND cannot IS NULL AS up, policy, behind
FROM rate_limit_proxies WHERE ended IS NULL ORDER BY node`)
		if err == nil {
			found, err = pgx.CollectRows(rows, pgx.RowToStructByName[proxy])
		}
		return err
	})
	_, answered := pgError(err)
	return found, err == nil || answered
}

// numbers are the states of the database and the proxies. docs/page.md lists the metrics.
type numbers struct {
	up               bool
	proxies, obeying []proxy // with the counters, and with the policy
}

// Describe implements prometheus.Collector. It names nothing: the registry checks what Collect sends.
func (*numbers) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (n *numbers) Collect(to chan<- prometheus.Metric) {
	gauge := func(name, help string, value float64, labels ...string) {
		names, values := []string{}, []string{}
		for i := 0; i < len(labels); i += 2 {
			names, values = append(names, labels[i]), append(values, labels[i+1])
		}
		desc := prometheus.NewDesc(namespace+"_"+name, help, names, nil)
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, values...)
	}
	gauge("database_up", "1 if the database answers the page, else 0.", oneIf(n.up))
	for _, p := range n.proxies {
		version := ""
		if p.Version != nil {
			version = *p.Version
		}
		gauge("proxy_up", "1 if the proxy counts in the database now, 0 if it is gone or cannot decide.",
			oneIf(p.Up), "node", p.Node, "version", version)
	}
	for _, p := range n.obeying {
		if !p.Policy {
			continue
		}
		behind := -1.0
		if p.Behind != nil {
			behind = float64(*p.Behind)
		}
		gauge("proxy_changes_behind",
			"Changes of the policy that the proxy has yet to apply. -1: it is not known.", behind, "node",
			p.Node)
	}
}

// requestSums are the requests of the minutes since the server of the page began, by prefix and outcome. A
// proxy may write a minute late.
type requestSums struct {
	mu    sync.Mutex // guards what follows
	since time.Time  // the first minute that is read again
	past  map[[2]string]int64
	last  map[[2]string]int64 // of the minutes from since on
}

// lateTime is the time after a minute in which a proxy may still write it.
const lateTime = 15 * time.Minute

// read reads the minutes that may have changed.
func (s *requestSums) read(ctx context.Context, tx pgx.Tx) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var now time.Time
	if err := tx.QueryRow(ctx, "SELECT now()").Scan(&now); err != nil {
		return err
	}
	if s.since.IsZero() {
		s.since = now.Truncate(time.Minute)
	}
	until := now.Add(-lateTime).Truncate(time.Minute)
	rows, err := tx.Query(ctx, `SELECT prefix, outcome, time < $2::timestamptz AS past, sum(n)::bigint AS n
FROM rate_limit_metrics, LATERAL (VALUES ('allowed', allowed), ('limited', limited), ('blocked', blocked),
	('rejected', rejected), ('error', errors), ('shadow', shadow)) AS d(outcome, n)
WHERE granularity = 'minute' AND time >= $1::timestamptz GROUP BY 1, 2, 3`, s.since, until)
	if err != nil {
		return err
	}
	past, last := maps.Clone(s.past), map[[2]string]int64{}
	var labels [2]string
	var isPast bool
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&labels[0], &labels[1], &isPast, &n}, func() error {
		sums := last
		if isPast {
			sums = past
		}
		sums[labels] += n
		return nil
	})
	if err != nil {
		return err
	}
	s.past, s.last = past, last
	if until.After(s.since) {
		s.since = until
	}
	return nil
}

// Describe implements prometheus.Collector, as numbers does.
func (s *requestSums) Describe(chan<- *prometheus.Desc) {}

var requestsDesc = prometheus.NewDesc(namespace+"_requests_total",
	"Requests by prefix of the limit and by what happened, as in the history. They are those since this "+
		"page's server has started.",
	[]string{"prefix", "outcome"}, nil)

// Collect implements prometheus.Collector.
func (s *requestSums) Collect(to chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sums := maps.Clone(s.past)
	for labels, n := range s.last {
		sums[labels] += n
	}
	for labels, n := range sums {
		to <- prometheus.MustNewConstMetric(requestsDesc, prometheus.CounterValue, float64(n), labels[0],
			labels[1])
	}
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
