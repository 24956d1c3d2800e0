package caddymodule

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// The name of each metric begins with namespace and subsystem.
const namespace, subsystem = "caddy", "pg_ratelimit"

// metrics are the metrics of the limits among Caddy's. No label has a key, a user or a path:
// there may be millions of them, and they may be secret. docs/metrics.md describes all metrics and labels.
type metrics struct {
	decisions       *prometheus.CounterVec // for limits of the configuration
	policyDecisions *prometheus.CounterVec // for limits of rules
	policyRequests  *prometheus.CounterVec
	settlements     *prometheus.CounterVec
	duration        prometheus.Histogram

	// The resources that the handlers of the config share. The collector state reads them.
	mu        sync.Mutex // guards all that follows
	collected map[host.Resource]bool
	stores    []collectedStore
	policies  []collectedPolicy
	histories []*history.Writer
}

// newMetrics registers the metrics in the registry of a config.
func newMetrics(registry *prometheus.Registry) (*metrics, error) {
	var all error
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem,
			Name: name, Help: help}, labels)
		all = errors.Join(all, registry.Register(v))
		return v
	}
	m := &metrics{
		collected: map[host.Resource]bool{},
		decisions: vec("decisions_total", "Requests by limit of the configuration, outcome, and source of "+
			"the decision.", "prefix", "outcome", "source"),
		policyDecisions: vec("policy_decisions_total", "Requests by limit of a rule, outcome, and source of "+
			"the decision.", "rule", "limit", "outcome", "source"),
		policyRequests: vec("policy_requests_total", "Requests by what the policy says.", "outcome"),
		settlements: vec("settlements_total", "Requests that were settled: they cost more, less or the "+
			"same, or the cost was missing or invalid.", "prefix", "outcome"),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "decision_duration_seconds",
			Help:    "How long requests waited for their decision, or for the error that there is none.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1},
		}),
	}
	return m, errors.Join(all, registry.Register(m.duration), registry.Register(state{m}))
}

// initSeries creates the series of a limit, so that they begin at 0.
func (m *metrics) initSeries(z *serve.Zone, inMemory bool) {
	prefix := z.Limit.Prefix
	if z.Settle != nil {
		for _, outcome := range serve.SettleOutcomes {
			m.settlements.WithLabelValues(prefix, string(outcome))
		}
	}
	if z.Mode == settings.Shadow {
		return
	}
	sources := map[string][]string{"error_passed": {noSource}, "error_refused": {noSource},
		"overloaded": {noSource}, "allowed": {"postgres", "lease"}, "denied": {"postgres", "blocked"}}
	if inMemory {
		sources["allowed"], sources["denied"] = []string{"memory"}, []string{"memory"}
	}
	for outcome, all := range sources {
		for _, source := range all {
			m.decisions.WithLabelValues(prefix, outcome, source)
		}
	}
}

// noSource is the source of requests without a decision.
const noSource = "none"

// countDecision counts a request with a decision, or one for which no decision was possible.
func (m *metrics) countDecision(q *serve.Request) {
	m.duration.Observe(time.Since(q.Began).Seconds())
	marks := q.Verdict.Marks
	for i := range q.Hits {
		var mark *policy.Mark
		if at := i - len(q.Hits) + len(marks); at >= 0 { // the hits of the policy are the last
			mark = marks[at]
		}
		outcome := outcomeOf(q, i, mark)
		if outcome == "" {
			continue
		}
		source := noSource
		if q.Outcome.Err == nil {
			source = q.Decisions[i].Source.String()
		}
		if mark != nil {
			m.policyDecisions.WithLabelValues(mark.Rule, mark.Limit, outcome, source).Inc()
		} else {
			m.decisions.WithLabelValues(q.Hits[i].Limit.Prefix, outcome, source).Inc()
		}
	}
}

// outcomeOf returns the outcome of a hit as a label, or "" if the metrics do not count the hit: another hit
// of the request was refused, or no decision was possible and the hit could not have refused the request.
// mark is nil for a limit of the configuration.
func outcomeOf(q *serve.Request, i int, mark *policy.Mark) string {
	o, shadow := &q.Outcome, q.Hits[i].Apart
	if o.Err != nil {
		if shadow {
			return ""
		}
		return undecidedOutcome(o)
	}
	d := &q.Decisions[i]
	switch {
	case d.Source == ratelimit.Undecided:
		return ""
	case shadow && d.Allowed:
		return "would_allow"
	case shadow:
		return "would_deny"
	case !d.Allowed:
		return "denied"
	case o.Status != 0:
		return ""
	case mark != nil && mark.Overage && o.Overage > 0 && d.Remaining == 0:
		return "overage"
	}
	return "allowed"
}

// undecidedOutcome returns the outcome of a request without a decision.
func undecidedOutcome(o *respond.Outcome) string {
	switch {
	case errors.Is(o.Err, ratelimit.ErrOverloaded):
		return "overloaded"
	case o.Status == http.StatusServiceUnavailable:
		return "error_refused"
	}
	return "error_passed"
}

// policyOutcome returns the policy's verdict on a request as a label.
func policyOutcome(q *serve.Request) string {
	v := &q.Verdict
	switch {
	case q.Outcome.Err != nil:
		return undecidedOutcome(&q.Outcome)
	case v.Refused():
		return v.Reason.String()
	case v.Exempt:
		return "exempt"
	case len(v.Hits) > 0:
		return "charged"
	}
	return "free"
}
