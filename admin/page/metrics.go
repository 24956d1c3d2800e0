package page

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
)

// namespace begins the names of the metrics. Names of the Caddy module begin with caddy_ instead.
const namespace = "pg_ratelimit"

// serveMetrics serves the metrics of all proxies for Prometheus.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	c := new(proxyCollector)
	c.proxies, c.up = s.proxies(r.Context(), counterData)
	c.policyProxies = c.proxies
	if s.pools.dsns[policyData] != s.pools.dsns[counterData] {
		c.policyProxies, _ = s.proxies(r.Context(), policyData)
	}
	_ = s.pools.read(r.Context(), counterData, answerTimeout, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "SELECT price, part FROM rate_limit_unpriced()")
		if err == nil {
			c.unpriced, err = pgx.CollectRows(rows, pgx.RowToStructByPos[unpriced])
		}
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, "SELECT count(*)::float8 FROM rate_limit_vacuum_holders()").
			Scan(&c.vacuumHolders)
	})
	// If the history cannot be read, the sums keep the values of the previous scrape.
	_ = s.pools.read(r.Context(), historyData, askTimeout, s.requests.read)
	registry := prometheus.NewPedanticRegistry()
	if err := errors.Join(registry.Register(c), registry.Register(&s.requests)); err != nil {
		newFailure(err).write(w)
		return
	}
	w.Header().Del("Cache-Control")
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// proxy is a row of rate_limit_proxies. Late is nil if the proxy has not read the policy of this database,
// and Ahead if its clock is not known.
type proxy struct {
	Node    string
	Version *string
	Up      bool
	Policy  bool
	Late    *int64
	Ahead   *float64
}

// proxies reads the proxies that a database has registered, without those that have shut down in order. up
// reports whether the database answers, be it with an error such as a missing table.
func (s *Server) proxies(ctx context.Context, data dataset) (proxies []proxy, up bool) {
	err := s.pools.read(ctx, data, answerTimeout, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT node, version, live AND cannot IS NULL AS up, policy, late,
seconds_ahead::float8 AS ahead FROM rate_limit_proxies WHERE ended IS NULL ORDER BY node`)
		if err == nil {
			proxies, err = pgx.CollectRows(rows, pgx.RowToStructByName[proxy])
		}
		return err
	})
	_, ok := pgError(err)
	return proxies, err == nil || ok
}

// unpriced is a part that a row of prices has charged without a price of its own.
type unpriced struct{ Price, Part string }

// proxyCollector collects the states of the database, the proxies and the prices. docs/page.md lists the
// metrics.
type proxyCollector struct {
	up                     bool
	proxies, policyProxies []proxy // registries of the counters' and the policy's database
	unpriced               []unpriced
	vacuumHolders          *float64 // nil if they cannot be counted
}

// Describe implements prometheus.Collector. No description is sent, so the registry checks the metrics when
// it collects them.
func (*proxyCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *proxyCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(name, help string, value float64, labels ...string) {
		names, values := []string{}, []string{}
		for i := 0; i < len(labels); i += 2 {
			names, values = append(names, labels[i]), append(values, labels[i+1])
		}
		desc := prometheus.NewDesc(namespace+"_"+name, help, names, nil)
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, values...)
	}
	gauge("database_up", "1 if the database answers the page, else 0.", boolGauge(c.up))
	for _, p := range c.proxies {
		version := ""
		if p.Version != nil {
			version = *p.Version
		}
		gauge("proxy_up", "1 if the proxy counts in the database now, 0 if it is silent or cannot decide.",
			boolGauge(p.Up), "node", p.Node, "version", version)
		if p.Ahead != nil {
			gauge("proxy_clock_ahead_seconds", "The seconds by which the clock of the proxy is ahead of the "+
				"clock of the server.", *p.Ahead, "node", p.Node)
		}
	}
	for _, p := range c.policyProxies {
		if !p.Policy {
			continue
		}
		behind := -1.0
		if p.Late != nil {
			behind = float64(*p.Late)
		}
		gauge("proxy_changes_behind",
			"Changes of the policy that the proxy did not apply within 10 seconds. -1: it is not known.",
			behind, "node", p.Node)
	}
	if c.vacuumHolders != nil {
		gauge("vacuum_holders",
			"Transactions and replication slots that keep vacuum from removing old rows, which the command "+
				"state names.", *c.vacuumHolders)
	}
	for _, u := range c.unpriced {
		gauge("unpriced", "1 if searches, sound or pictures were charged in the last 7 days by a row of "+
			"prices that has no price of their own.", 1, "price", u.Price, "part", u.Part)
	}
}

// requestSums counts the requests since the first scrape of this server, by prefix and outcome, which is ""
// for those that a shadow rule would have refused. A proxy may add to a minute up to lateTime after its end,
// so each scrape reads a minute again until the minute is final.
type requestSums struct {
	mu        sync.Mutex          // guards the fields below
	firstOpen time.Time           // the start of the first minute that is not final
	finalSums map[[2]string]int64 // sums of the final minutes
	openSums  map[[2]string]int64 // sums of the minutes from firstOpen on
}

// lateTime is the time after which a minute is final, because no proxy adds to the minute any later.
const lateTime = 15 * time.Minute

// read reads the minutes from firstOpen on. It adds the minutes that have become final to finalSums, and
// replaces openSums by the sums of the others.
func (s *requestSums) read(ctx context.Context, tx pgx.Tx) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var now time.Time
	if err := tx.QueryRow(ctx, "SELECT now()").Scan(&now); err != nil {
		return err
	}
	if s.firstOpen.IsZero() {
		s.firstOpen = now.Truncate(time.Minute)
	}
	finalEnd := now.Add(-lateTime).Truncate(time.Minute)
	rows, err := tx.Query(ctx, `SELECT prefix, outcome, time < $2::timestamptz AS past, sum(n)::bigint AS n
FROM rate_limit_metrics, LATERAL unnest('{`+strings.Join(outcome.Words, ",")+`,""}'::text[], ARRAY[`+
		strings.Join(outcome.Words, ", ")+`, shadow]) AS d(outcome, n)
WHERE granularity = 'minute' AND time >= $1::timestamptz GROUP BY 1, 2, 3`, s.firstOpen, finalEnd)
	if err != nil {
		return err
	}
	finalSums, openSums := maps.Clone(s.finalSums), map[[2]string]int64{}
	var labels [2]string
	var isFinal bool
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&labels[0], &labels[1], &isFinal, &n}, func() error {
		sums := openSums
		if isFinal {
			sums = finalSums
		}
		sums[labels] += n
		return nil
	})
	if err != nil {
		return err
	}
	s.finalSums, s.openSums = finalSums, openSums
	if finalEnd.After(s.firstOpen) {
		s.firstOpen = finalEnd
	}
	return nil
}

// Describe implements prometheus.Collector. As in proxyCollector, no description is sent.
func (s *requestSums) Describe(chan<- *prometheus.Desc) {}

var (
	requestsDesc = prometheus.NewDesc(namespace+"_requests_total",
		"Requests since the start of this page's server, by prefix of the limit and by outcome.",
		[]string{"prefix", "outcome"}, nil)
	shadowDesc = prometheus.NewDesc(namespace+"_shadow_refusals_total",
		"Requests since then that the limit would have refused, but for the mode shadow.",
		[]string{"prefix"}, nil)
)

// Collect implements prometheus.Collector.
func (s *requestSums) Collect(out chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sums := maps.Clone(s.finalSums)
	for labels, n := range s.openSums {
		sums[labels] += n
	}
	for labels, n := range sums {
		desc, values := requestsDesc, labels[:]
		if labels[1] == "" {
			desc, values = shadowDesc, labels[:1]
		}
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), values...)
	}
}

// boolGauge returns 1 for true and 0 for false.
func boolGauge(v bool) float64 {
	if v {
		return 1
	}
	return 0
}
