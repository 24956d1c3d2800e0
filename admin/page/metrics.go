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

// gauges has the gauges of the databases. The columns of a statement are the labels, and the value.
var gauges = []struct {
	name, help string
	data       dataset
	sql        string
}{{
	"proxy_up", "1 if the proxy counts in the database now, 0 if it is silent or cannot decide.", counterData,
	`SELECT node, coalesce(version, '') AS version, (live AND cannot IS NULL)::int::float8 AS value
FROM rate_limit_proxies WHERE ended IS NULL`,
}, {
	"proxy_clock_ahead_seconds",
	"The seconds by which the clock of the proxy is ahead of the clock of the server.", counterData,
	`SELECT node, seconds_ahead::float8 AS value FROM rate_limit_proxies
WHERE ended IS NULL AND seconds_ahead IS NOT NULL`,
}, {
	"proxy_changes_behind",
	"Changes of the policy that the proxy did not apply within 10 seconds. -1: it is not known.", policyData,
	"SELECT node, coalesce(late, -1)::float8 AS value FROM rate_limit_proxies WHERE ended IS NULL AND policy",
}, {
	"vacuum_holders",
	"Transactions and replication slots that keep vacuum from removing old rows, which the command state " +
		"names.",
	counterData, "SELECT count(*)::float8 AS value FROM rate_limit_vacuum_holders()",
}, {
	"unpriced",
	"1 if searches, sound or pictures were charged in the last 7 days by a row of prices that has no price " +
		"of their own.",
	counterData, "SELECT price, part, 1::float8 AS value FROM rate_limit_unpriced()",
}}

// serveMetrics serves the metrics of all proxies for Prometheus.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	registry := prometheus.NewRegistry()
	var failed error
	add := func(name, help string, value float64, labels prometheus.Labels) {
		o := prometheus.Opts{Namespace: namespace, Name: name, Help: help, ConstLabels: labels}
		get := func() float64 { return value }
		var metric prometheus.Collector = prometheus.NewGaugeFunc(prometheus.GaugeOpts(o), get)
		if strings.HasSuffix(name, "_total") {
			metric = prometheus.NewCounterFunc(prometheus.CounterOpts(o), get)
		}
		failed = errors.Join(failed, registry.Register(metric))
	}
	up, silent := 0.0, map[string]bool{} // by DSN
	for _, g := range gauges {
		dsn := s.pools.dsns[g.data]
		if silent[dsn] {
			continue
		}
		var rows []map[string]any
		err := s.pools.read(r.Context(), g.data, answerTimeout, func(ctx context.Context, tx pgx.Tx) error {
			found, err := tx.Query(ctx, g.sql)
			if err == nil {
				rows, err = pgx.CollectRows(found, pgx.RowToMap)
			}
			return err
		})
		if _, answered := pgError(err); err != nil && !answered { // else be it with a missing table
			silent[dsn] = true
		} else if g.data == counterData {
			up = 1
		}
		for _, row := range rows {
			labels := prometheus.Labels{}
			for name, value := range row {
				if text, isText := value.(string); isText {
					labels[name] = text
				}
			}
			add(g.name, g.help, row["value"].(float64), labels)
		}
	}
	add("database_up", "1 if the database answers the page, else 0.", up, nil)
	// If the history cannot be read, the sums keep the values of the previous scrape.
	_ = s.pools.read(r.Context(), historyData, askTimeout, s.requests.read)
	for by, n := range s.requests.latest() {
		labels := prometheus.Labels{"prefix": by[0]}
		if by[1] == "" {
			add("shadow_refusals_total", "Requests since then that the limit would have refused, but for "+
				"the mode shadow.", float64(n), labels)
			continue
		}
		labels["outcome"] = by[1]
		add("requests_total", "Requests since the start of this page's server, by prefix of the limit and "+
			"by outcome.", float64(n), labels)
	}
	if failed != nil {
		newFailure(failed).write(w)
		return
	}
	w.Header().Del("Cache-Control")
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// requestSums counts the requests since the first scrape of this server, by prefix and outcome, which is ""
// for those that a shadow rule would have refused. A proxy may add to a minute up to lateTime after its end,
// so each scrape reads a minute again until the minute is final.
type requestSums struct {
	mu        sync.Mutex          // guards the fields below
	firstOpen time.Time           // the start of the first minute that is not final
	finalSums map[[2]string]int64 // sums of the final minutes
	sums      map[[2]string]int64 // sums of all minutes
}

// lateTime is the time after which a minute is final, because no proxy adds to the minute any later.
const lateTime = 15 * time.Minute

// read reads the minutes from firstOpen on. It adds the minutes that have become final to finalSums, and
// replaces sums.
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
	finalSums, sums := maps.Clone(s.finalSums), maps.Clone(s.finalSums)
	var labels [2]string
	var isFinal bool
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&labels[0], &labels[1], &isFinal, &n}, func() error {
		sums[labels] += n
		if isFinal {
			finalSums[labels] += n
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.finalSums, s.sums = finalSums, sums
	if finalEnd.After(s.firstOpen) {
		s.firstOpen = finalEnd
	}
	return nil
}

// latest returns the sums of all minutes, which nobody changes.
func (s *requestSums) latest() map[[2]string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sums
}
